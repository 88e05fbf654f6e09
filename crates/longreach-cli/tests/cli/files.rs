//! Files that are broken, hostile or do not fit: exit 2, one line that names the file, nothing written.

use crate::support::{Entry, Folder, attend, entry, raw, safetensors, small, small_entries};

#[test]
fn files_that_are_not_safetensors() {
    let folder = Folder::new();
    let whole = small("F32");
    let header_length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let broken: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "fewer than 8 bytes"),
        ("short", vec![1, 2, 3], "fewer than 8 bytes"),
        ("text", b"this is not a tensor file at all".to_vec(), "header is larger"),
        ("huge", u64::MAX.to_le_bytes().to_vec(), "header is larger"),
        ("long", (1u64 << 20).to_le_bytes().to_vec(), "header is longer than the file"),
        ("cut-header", whole[..8 + header_length / 2].to_vec(), "header is longer than the file"),
        ("cut-data", whole[..whole.len() - 1].to_vec(), "do not end where the file ends"),
        ("no-data", whole[..8 + header_length].to_vec(), "do not end where the file ends"),
        ("trailing", [&whole[..], b"x"].concat(), "do not end where the file ends"),
        ("no-json", raw("q, k and v", &[]), "not a whole safetensors file"),
        ("not-utf8", [&4u64.to_le_bytes()[..], b"\xff\xfe\xff\xfe"].concat(), "not a whole safetensors file"),
        ("list", raw("[]", &[]), "not a whole safetensors file"),
        ("nothing", raw("{}", &[]), "no tensor q"),
        ("deep", raw(&"[".repeat(100_000), &[]), "not a whole safetensors file"),
    ];
    for (name, bytes, part) in broken {
        let path = folder.file(name, bytes);
        attend(&path, &["--backward", "--check"]).refused(&["INPUT", name, part]);
    }
    attend(&folder.path("missing"), &[]).refused(&["INPUT", "missing", "cannot be read"]);
    attend(&folder.path(""), &[]).refused(&["INPUT", "not a regular file"]);
}

#[cfg(unix)]
#[test]
fn a_device_is_no_input() {
    attend("/dev/zero".as_ref(), &[]).refused(&["INPUT /dev/zero", "not a regular file"]);
}

#[test]
fn headers_that_lie() {
    let folder = Folder::new();
    let line = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"q\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let max = u64::MAX;
    for (number, (header, data)) in [
        (line("F99", "[1]", "[0,4]"), 4),
        (line("F32", "[2]", "[0,4]"), 4),
        (line("F32", "[1]", "[4,0]"), 4),
        (line("F32", "[1]", "[4,8]"), 8),
        (line("F32", "[-1]", "[0,4]"), 4),
        (line("F32", "[1.5]", "[0,4]"), 4),
        (line("F32", "[1]", "[0,400]"), 4),
        (line("F32", "[4294967296,4294967296,4294967296]", "[0,4]"), 4),
        (line("F32", &format!("[{max},{max},{max},{max}]"), "[0,4]"), 4),
        (line("F32", "[1]", &format!("[0,{max}]")), 4),
        (line("F32", "\"many\"", "[0,4]"), 4),
        (r#"{"q":{"dtype":"F32","shape":[1]}}"#.to_owned(), 4),
        (r#"{"q":null}"#.to_owned(), 0),
        (r#"{"__metadata__":{"scale":1.0}}"#.to_owned(), 0),
        (r#"{"__metadata__":"causal"}"#.to_owned(), 0),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.file(&number.to_string(), raw(&header, &vec![0; data]));
        attend(&path, &[]).refused(&["INPUT", "not a whole safetensors file"]);
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let folder = Folder::new();
    let case = |q: Entry, k: Entry, v: Entry| [q, k, v];
    let f32 = |name, shape: &[usize]| entry(name, "F32", shape);
    let (q, k, v) = (|| f32("q", &[1, 6, 4, 8]), || f32("k", &[1, 6, 2, 8]), || f32("v", &[1, 6, 2, 8]));
    for (entries, part) in [
        (case(f32("q", &[6, 4, 8]), k(), v()), "tensor q has 3 dimensions, expected 4 [B, Sq, Hq, Dqk]"),
        (case(q(), f32("k", &[1, 6, 2, 8, 1]), v()), "tensor k has 5 dimensions"),
        (case(q(), k(), f32("v", &[])), "tensor v has 0 dimensions"),
        (case(q(), k(), f32("w", &[1, 6, 2, 8])), "no tensor v"),
        (case(q(), f32("k", &[2, 6, 2, 8]), v()), "tensor k has shape [2, 6, 2, 8], expected [1, 6, 2, 8]"),
        (case(q(), f32("k", &[1, 6, 2, 4]), v()), "tensor k has shape [1, 6, 2, 4]"),
        (case(q(), k(), f32("v", &[1, 5, 2, 8])), "tensor v has shape [1, 5, 2, 8], expected [1, 6, 2, 8]"),
        (case(q(), k(), f32("v", &[1, 6, 1, 8])), "tensor v has shape [1, 6, 1, 8]"),
        (
            case(f32("q", &[1, 6, 10, 8]), f32("k", &[1, 6, 4, 8]), f32("v", &[1, 6, 4, 8])),
            "q has 10 heads and k has 4",
        ),
        (case(f32("q", &[1, 6, 0, 8]), k(), v()), "q has a number of heads of 0"),
        (case(q(), f32("k", &[1, 6, 0, 8]), f32("v", &[1, 6, 0, 8])), "k has a number of heads of 0"),
        (case(f32("q", &[1, 6, 4, 0]), f32("k", &[1, 6, 2, 0]), v()), "q has a head dimension of 0"),
        (case(q(), k(), f32("v", &[1, 6, 2, 0])), "v has a head dimension of 0"),
        (
            case(f32("q", &[0, 6, 4, 8]), f32("k", &[0, 6, 2, 8]), f32("v", &[0, 6, 2, 8])),
            "q has a batch of 0",
        ),
        (case(q(), entry("k", "BF16", &[1, 6, 2, 8]), v()), "tensor k has type bf16, expected f32"),
        (case(q(), k(), entry("v", "F16", &[1, 6, 2, 8])), "tensor v has type f16, expected f32"),
        (
            case(entry("q", "F64", &[1, 6, 4, 8]), k(), v()),
            "tensor q has dtype F64, expected F32, F16 or BF16",
        ),
        (case(q(), k(), entry("v", "U8", &[1, 6, 2, 8])), "tensor v has dtype U8"),
    ] {
        let path = folder.file("x", safetensors("", &entries));
        attend(&path, &[]).refused(&["INPUT", part]);
    }
    let huge = (1u64 << 62).to_string();
    let header =
        format!("{{\"q\":{{\"dtype\":\"F32\",\"shape\":[{huge},0,4,{huge}],\"data_offsets\":[0,0]}}}}");
    attend(&folder.file("x", raw(&header, &[])), &[]).refused(&["INPUT"]);
}

#[test]
fn metadata_that_is_not_understood() {
    let folder = Folder::new();
    for (metadata, parts) in [
        (r#""layout":"bhsd""#, &["metadata layout is bhsd", "expected bshd"][..]),
        (r#""mask":"sideways""#, &["metadata mask is sideways", "causal or full"]),
        (r#""scale":"nan""#, &["metadata scale is nan", "finite"]),
        (r#""scale":"inf""#, &["metadata scale is inf"]),
        (r#""scale":"""#, &["metadata scale is"]),
        (r#""scale":"1,5""#, &["metadata scale is 1,5"]),
        (r#""layout":"a\nb\u001b[2J""#, &["metadata layout is a b\\u{1b}[2J"]),
    ] {
        let path = folder.file("in", safetensors(metadata, &small_entries("F32")));
        attend(&path, &[]).refused(parts);
    }
}

#[test]
fn gradients_that_are_not_like_the_output() {
    let folder = Folder::new();
    let with = |dout: Entry| {
        let mut entries = small_entries("F32");
        entries.push(dout);
        folder.file("in", safetensors("", &entries))
    };
    for (dout, part) in [
        (entry("dout", "F32", &[2, 12, 4, 8]), "tensor dout has shape [2, 12, 4, 8], expected [2, 12, 4, 6]"),
        (entry("dout", "BF16", &[2, 12, 4, 6]), "tensor dout has type bf16, expected f32"),
        (entry("dout", "F64", &[2, 12, 4, 6]), "tensor dout has dtype F64"),
        (entry("dout", "F32", &[12, 4, 6]), "tensor dout has 3 dimensions"),
    ] {
        attend(&with(dout), &["--backward"]).refused(&["INPUT", part]);
    }
    let path = folder.file("in", small("F32"));
    let file = |name: &str, bytes: Vec<u8>| folder.file(name, bytes).display().to_string();
    let none = file("none", small("F32"));
    let wrong = file("wrong", safetensors("", &[entry("dout", "F32", &[1, 12, 4, 6])]));
    let cut = file("cut", vec![9; 100]);
    attend(&path, &["--backward", "--dout", &none]).refused(&["--dout", "none", "no tensor dout"]);
    attend(&path, &["--backward", "--dout", &wrong]).refused(&["--dout", "wrong", "expected [2, 12, 4, 6]"]);
    attend(&path, &["--backward", "--dout", &cut]).refused(&[
        "--dout",
        "cut",
        "not a whole safetensors file",
    ]);
    attend(&path, &["--backward", "--dout", "nowhere"]).refused(&["--dout nowhere", "cannot be read"]);
    attend(&path, &["--dout", &none]).refused(&["--dout", "--backward"]);
}
