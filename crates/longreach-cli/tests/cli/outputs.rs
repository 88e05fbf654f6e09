//! Outputs: never over a file of the request, whatever it is called.

use crate::support::{Folder, attend, entry, program, ran, safetensors, small, small_entries, text};

/// An input, a gradient and bands, with other names for each: as an output every one is refused, and all stay whole.
#[test]
fn no_spelling_of_a_file_that_is_read_is_written() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let dout = folder.file("dout", safetensors("", &[entry("dout", "F32", &[2, 12, 4, 6])]));
    let bands = folder.file("bands", r#"{"bands":[{"q":[0,12],"lo":{"fixed":0},"hi":{"diagonal":1}}]}"#);
    let names = ["in", "dout", "bands"];
    std::fs::create_dir(folder.path("inner")).unwrap();
    let mut spellings: Vec<(&str, String)> = Vec::new();
    for name in names {
        spellings.push((name, text(&folder.path(name))));
        spellings.push((name, text(&folder.path("inner/..").join(name))));
        spellings.push((name, format!("./{name}")));
        #[cfg(unix)]
        {
            let (soft, hard) = (format!("soft-{name}"), format!("hard-{name}"));
            std::os::unix::fs::symlink(folder.path(name), folder.path(&soft)).unwrap();
            std::fs::hard_link(folder.path(name), folder.path(&hard)).unwrap();
            spellings.extend([(name, text(&folder.path(&soft))), (name, hard)]);
        }
    }
    let (before, contents) = (folder.names(), names.map(|name| std::fs::read(folder.path(name)).unwrap()));
    for (name, spelling) in &spellings {
        let read = match *name {
            "in" => "INPUT",
            "dout" => "--dout",
            _ => "--bands",
        };
        for argument in ["--out", "--trace"] {
            let mut command = program();
            command.current_dir(folder.path("")).args(["attend", &text(&input), "--backward"]);
            command.args(["--dout", &text(&dout), "--bands", &text(&bands), argument, spelling]);
            let refused = format!("{argument} {spelling}: is the file of {read} also");
            ran(&mut command).refused(&[&refused]);
        }
    }
    assert_eq!(folder.names(), before);
    assert!(names.map(|name| std::fs::read(folder.path(name)).unwrap()) == contents);
}

#[test]
fn two_outputs_are_two_files_also_where_there_is_none_yet() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    std::fs::create_dir(folder.path("inner")).unwrap();
    let mut pairs = vec![("x", "./x"), ("x", "inner/../x"), ("inner/x", "inner/./x")];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("inner", folder.path("link")).unwrap();
        pairs.extend([("inner/x", "link/x"), ("link/x", "inner/../link/x")]);
    }
    let before = folder.names();
    for (out, trace) in pairs {
        let mut command = program();
        command.current_dir(folder.path("")).args(["attend", &text(&input), "--out", out, "--trace", trace]);
        ran(&mut command).refused(&[&format!("--trace {trace}: is the file of --out also")]);
    }
    assert_eq!(folder.names(), before);
}

#[test]
fn a_file_that_is_not_read_is_written_over() {
    let folder = Folder::new();
    let mut entries = small_entries("F32");
    entries.push(entry("dout", "F32", &[2, 12, 4, 6]));
    let input = text(&folder.file("in", safetensors("", &entries)));
    let out = text(&folder.file("out", "what was there before"));
    // INPUT may be read twice.
    let ran = attend(input.as_ref(), &["--backward", "--dout", &input, "--out", &out]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(std::fs::read(out).unwrap().len() > 100);
}

#[test]
fn a_file_beside_an_output_is_not_spoken_of() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let missing = text(&folder.path("missing/x"));
    for argument in ["--out", "--trace"] {
        let ran = attend(&input, &[argument, &missing]);
        ran.refused(&[argument, "missing/x", "cannot be written"]);
        assert_eq!(ran.stderr.matches("missing").count(), 1, "{}", ran.stderr);
        assert!(!ran.stderr.contains(".longreach"), "{}", ran.stderr);
    }
}

#[test]
fn results_that_the_type_cannot_hold_are_not_written() {
    let folder = Folder::new();
    let input = folder.file("in", small("F16"));
    let mut large = safetensors("", &[entry("dout", "F16", &[2, 12, 4, 6])]);
    let elements = large.len() - 2 * 12 * 4 * 6 * 2;
    large[elements..]
        .chunks_mut(2)
        .for_each(|x| x.copy_from_slice(&half::f16::from_f32(50_000.0).to_le_bytes()));
    let dout = text(&folder.file("dout", large));
    let (out, trace) = (text(&folder.path("out")), text(&folder.path("trace")));
    for transport in ["threads", "processes"].iter().take(if cfg!(target_os = "linux") { 2 } else { 1 }) {
        let args = ["--backward", "--dout", &dout, "--out", &out, "--trace", &trace, "--json"];
        let args = [&args[..], &["--transport", transport]].concat();
        let ran = attend(&input, &args);
        assert_eq!((ran.status, &*ran.stdout), (Some(1), ""), "{}", ran.stderr);
        let line = ran.stderr.lines().last().unwrap();
        assert!(line.starts_with("error: ") && line.ends_with(" beyond f16's range: write --out-dtype f32"));
        assert!(line.contains("dv has ") && !line.contains("out has"), "{line}");
        assert_eq!(folder.names(), ["dout", "in"]);
        let wide = attend(&input, &[&args[..], &["--out-dtype", "f32"]].concat());
        assert_eq!(wide.status, Some(0), "{}", wide.stderr);
        for path in [&out, &trace] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn names_that_no_file_can_have_are_refused_before_the_run() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let long = text(&folder.path(&"x".repeat(300)));
    let (below, slash) = (text(&folder.path("in/x")), text(&folder.path("x")) + "/");
    for argument in ["--out", "--trace"] {
        attend(&input, &[argument, &long]).refused(&[argument, "cannot be written"]);
        attend(&input, &[argument, &below]).refused(&[argument, "in/x", "cannot be written"]);
        attend(&input, &[argument, &slash]).refused(&[argument, "is not the name of a file"]);
    }
    assert_eq!(folder.names(), ["in"]);
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_to_what_is_written() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    std::fs::create_dir(folder.path("inner")).unwrap();
    for name in ["old", "new"] {
        std::os::unix::fs::symlink(format!("inner/{name}"), folder.path(name)).unwrap();
    }
    folder.file("inner/old", "what was there before");
    for name in ["old", "new"] {
        let ran = attend(&input, &["--out", &text(&folder.path(name))]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        assert!(folder.path(name).read_link().is_ok());
        assert!(folder.path("inner").join(name).metadata().unwrap().len() > 100);
    }
    assert_eq!(folder.names(), ["in", "inner", "new", "old"]);
}

#[cfg(unix)]
#[test]
fn what_is_printed_is_not_written_over() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let printed = text(&folder.path("printed"));
    let file = || std::fs::File::create(&printed).unwrap();
    let command = || {
        let mut command = program();
        command.args(["attend", &text(&input), "--out", &printed]);
        command
    };
    ran(command().stdout(file())).refused(&["--out", "is the file of standard output also"]);
    let output = command().stderr(file()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(std::fs::read_to_string(&printed).unwrap().contains("is the file of standard error also"));
}
