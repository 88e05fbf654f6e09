//! `longreach bench`: what it reports. How fast anything is, is for `bench/results` to say.

use crate::support::longreach;
use serde_json::Value;

#[test]
fn gets_are_reported_beside_copies_on_each_transport() {
    let transports: &[&str] =
        if cfg!(target_os = "linux") { &["threads", "processes"] } else { &["threads"] };
    for transport in transports {
        let ran = longreach(["bench", "get", "--transport", transport, "--json"]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let object: Value = serde_json::from_str(&ran.stdout).expect("one object");
        assert_eq!(object["transport"], *transport);
        assert!(object["page_bytes"].as_u64() >= Some(4096));
        let sizes = object["sizes"].as_array().expect("sizes");
        let bytes: Vec<u64> = sizes.iter().filter_map(|size| size["bytes"].as_u64()).collect();
        assert_eq!(bytes, (0..8).map(|power| 4096 << (2 * power)).collect::<Vec<u64>>());
        for size in sizes {
            let [get, copy, ratio] =
                ["get_gbps", "copy_gbps", "ratio"].map(|key| size[key].as_f64().unwrap());
            assert!(get > 0.0 && copy > 0.0 && ratio > 0.0 && ratio.is_finite(), "{size}");
        }
        let signal = &object["signal_round_trip_us"];
        assert!(signal["median"].as_f64() > Some(0.0) && signal["p99"].as_f64() >= signal["median"].as_f64());
    }
}
