//! `chancery jlm info` and `diff`, and `chancery convert`, over the fixtures' containers.

#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a skipped test says why, and a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn container(name: &str) -> Option<PathBuf> {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/jlm"
    ));
    if !folder.is_dir() {
        eprintln!("skipped: the fixtures folder is absent");
        return None;
    }
    Some(folder.join("containers").join(name))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn chancery(arguments: &[&str]) -> Output {
    Command::cargo_bin("chancery")
        .unwrap()
        .args(arguments)
        .output()
        .unwrap()
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
