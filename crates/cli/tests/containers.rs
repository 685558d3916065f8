//! `chancery jlm info` and `diff` over the fixtures' containers; what `chancery convert` leaves when it is
//! planned, interrupted or refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

use support::{chancery, fixtures, text};

fn container(name: &str) -> Option<PathBuf> {
    Some(fixtures()?.join("jlm/containers").join(name))
}

fn run(arguments: &[&str], code: i32) -> String {
    let output = chancery(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lines as words, since columns are as wide as their widest cell.
fn words(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn info_shows_standard_names_regions_and_pages() {
    let Some(file) = container("hf-qwen3moe-bf16.v27.jlm") else {
        return;
    };
    let lines = words(&run(&["jlm", "info", text(&file)], 0));
    assert!(
        lines.contains(&"architecture qwen3moe".to_owned()),
        "{lines:?}"
    );
    assert!(lines.contains(&"part offset bytes pages page bytes".to_owned()));
    let view: Value =
        serde_json::from_str(&run(&["jlm", "info", text(&file), "--json"], 0)).unwrap();
    assert_eq!(view["architecture"], "qwen3moe");
    let parts = view["parts"].as_array().unwrap();
    let names: Vec<_> = parts
        .iter()
        .map(|part| part["part"].as_str().unwrap())
        .collect();
    for name in [
        "header",
        "config",
        "tensor table",
        "vocab",
        "dense",
        "text pages",
        "expert pages",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for part in parts {
        let line = format!(
            "{} {} {} {} {}",
            part["part"].as_str().unwrap(),
            part["offset"],
            part["bytes"],
            part["pages"],
            part["page_bytes"]
        );
        assert!(lines.contains(&line), "{line}");
    }
    let last = parts.last().unwrap();
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!(end, fs::metadata(&file).unwrap().len());
    let pages: u64 = view["pages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|run| run["array"] == "expert pages")
        .map(|run| run["last"].as_u64().unwrap() - run["first"].as_u64().unwrap() + 1)
        .sum();
    let experts = parts
        .iter()
        .find(|part| part["part"] == "expert pages")
        .unwrap();
    assert_eq!(experts["pages"], pages);
}

#[test]
fn info_draws_a_map_once() {
    let Some(file) = container("hf-qwen3moe-bf16.v27.jlm") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map.svg");
    run(&["jlm", "info", text(&file), "--svg", text(&map)], 0);
    let svg = fs::read_to_string(&map).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains(">expert pages: "));
    run(&["jlm", "info", text(&file), "--svg", text(&map)], 1);
    assert_eq!(fs::read_to_string(&map).unwrap(), svg, "never replaced");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn diff_is_0_for_the_same_and_1_with_what_differs() {
    let Some(file) = container("hf-qwen3-bf16.v27.jlm") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.jlm");
    let mut bytes = fs::read(&file).unwrap();
    fs::write(&copy, &bytes).unwrap();
    assert_eq!(
        run(&["jlm", "diff", text(&file), text(&copy)], 0),
        "no difference\n"
    );

    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last] ^= 1;
    fs::write(&copy, &bytes).unwrap();
    let output = chancery(&["jlm", "diff", text(&file), text(&copy), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let view: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(view["same"], false);
    let parts: Vec<_> = view["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| difference["part"].as_str().unwrap())
        .collect();
    assert_eq!(parts, ["plane", "page"]);
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);

    let other = container("hf-qwen3-bf16.q8.v27.jlm").unwrap();
    let lines = words(&run(&["jlm", "diff", text(&file), text(&other)], 1));
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("tensor block 0 attn_q ")),
        "{lines:?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("header PageSize ")),
        "{lines:?}"
    );
    run(&["jlm", "diff", text(&file), "/nowhere"], 1);
    run(&["jlm", "diff", text(&file)], 2);
}

#[test]
fn diff_of_sealed_containers_names_their_seals_and_pages() {
    let Some(file) = container("hf-qwen3-bf16.v27.jlm") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (key, one, two) = (path("model.key"), path("one.jlm"), path("two.jlm"));
    run(&["keys", "generate", "-o", text(&key)], 0);
    for sealed in [&one, &two] {
        run(
            &[
                "jlm",
                "seal",
                text(&file),
                "-o",
                text(sealed),
                "--key",
                text(&key),
            ],
            0,
        );
    }
    run(&["jlm", "diff", text(&one), text(&one)], 0);
    let lines = words(&run(&["jlm", "diff", text(&one), text(&two)], 1));
    assert!(
        lines.iter().any(|line| line.starts_with("seal salt ")),
        "{lines:?}"
    );
    assert!(
        !lines
            .iter()
            .any(|line| line.starts_with("seal fingerprint "))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("page text pages 0 "))
    );
    assert!(!lines.iter().any(|line| line.starts_with("header ")));
    let lines = words(&run(&["jlm", "diff", text(&file), text(&one)], 1));
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("seal fingerprint - ")),
        "{lines:?}"
    );
    assert!(
        !lines.iter().any(|line| line.starts_with("page ")),
        "{lines:?}"
    );
    run(&["jlm", "info", text(&one)], 0);
}

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3");

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn json(arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    serde_json::from_str(&run(&arguments, 0)).unwrap()
}

/// Converts under a limit on the size of files: the kernel kills the process in the middle of a write.
fn interrupt(source: &Path, output: &Path, kibibytes: u64) {
    let program = Command::cargo_bin("chancery").unwrap();
    let script = format!("ulimit -c 0; ulimit -f {kibibytes}; exec \"$@\"");
    let status = std::process::Command::new("bash")
        .args(["-c", &script, "bash"])
        .arg(program.get_program())
        .args(["convert", text(source), text(output)])
        .status()
        .unwrap();
    assert_eq!(status.code(), None, "it was killed");
}

#[test]
fn a_plan_says_what_would_be_written_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jlm");
    let planned = json(&["convert", MODEL, text(&out), "--plan"]);
    assert_eq!(names(folder.path()), [""; 0]);
    let mut written = json(&["convert", MODEL, text(&out)]);
    assert_eq!(planned["bytes"], fs::metadata(&out).unwrap().len());
    assert_eq!(planned["written"], Value::Null);
    written["written"] = Value::Null;
    assert_eq!(planned, written);
    let lines = words(&run(&["convert", MODEL, "nowhere.jlm", "--plan"], 0));
    assert!(
        lines.contains(&"attn_q 0 bf16 [128, 128]".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn an_interrupted_conversion_continues_with_what_is_intact() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (whole, out) = (path("whole.jlm"), path("out.jlm"));
    let tensors = json(&["convert", MODEL, text(&whole)])["tensors"]
        .as_array()
        .unwrap()
        .len() as u64;
    let expected = fs::read(&whole).unwrap();
    interrupt(Path::new(MODEL), &out, expected.len() as u64 / 2048);
    let left = [".out.jlm.converting", ".out.jlm.journal", "whole.jlm"];
    assert_eq!(names(folder.path()), left);

    // A byte of what was written is lost: its tensor is written again.
    let staged = path(left[0]);
    let mut bytes = fs::read(&staged).unwrap();
    let recorded = fs::read_to_string(path(left[1])).unwrap().lines().count() as u64 - 1;
    let at = bytes.len() / 2;
    bytes[at] ^= 0xff;
    fs::write(&staged, bytes).unwrap();
    let resumed = json(&["convert", MODEL, text(&out)])["resumed"]
        .as_u64()
        .unwrap();
    assert_eq!(resumed, recorded - 1);
    assert!(resumed > 0 && recorded < tensors);
    assert!(fs::read(&out).unwrap() == expected);
    assert_eq!(names(folder.path()), ["out.jlm", "whole.jlm"]);
}

#[test]
fn another_source_or_another_choice_starts_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, out) = (path("source"), path("out.jlm"));
    fs::create_dir(&source).unwrap();
    for name in names(Path::new(MODEL)) {
        fs::copy(Path::new(MODEL).join(&name), source.join(&name)).unwrap();
    }
    interrupt(&source, &out, 512);
    let written = json(&["convert", text(&source), text(&out), "--q8"]);
    assert_eq!(written["resumed"], 0);
    let expected = path("q8.jlm");
    run(&["convert", MODEL, text(&expected), "--q8"], 0);
    assert!(fs::read(&out).unwrap() == fs::read(&expected).unwrap());

    fs::remove_file(&out).unwrap();
    interrupt(&source, &out, 512);
    let changed = fs::File::options()
        .append(true)
        .open(source.join("config.json"));
    changed
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(json(&["convert", text(&source), text(&out)])["resumed"], 0);
}

#[test]
fn a_refused_conversion_leaves_nothing_and_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jlm");
    fs::write(&out, "mine").unwrap();
    run(&["convert", MODEL, text(&out)], 1);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    let other = folder.path().join("other.jlm");
    run(&["convert", text(&out), text(&other)], 1);
    assert_eq!(names(folder.path()), ["out.jlm"]);

    // A conversion that is under way keeps its file to itself.
    let staged = fs::File::create(folder.path().join(".other.jlm.converting")).unwrap();
    staged.lock().unwrap();
    let output = chancery(&["convert", MODEL, text(&other)]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("another process"), "{said}");
    assert_eq!(names(folder.path()), [".other.jlm.converting", "out.jlm"]);
}
