//! On macOS a Python module finds Python's symbols in the process that loads it, and the linker must be told so.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_VENDOR").is_some_and(|vendor| vendor == "apple") {
        println!("cargo:rustc-cdylib-link-arg=-undefined");
        println!("cargo:rustc-cdylib-link-arg=dynamic_lookup");
    }
}
