//! Every checkpoint and sealed directory of `bad/index.json` is refused with a message that names
//! what is wrong, and leaves nothing behind; the controls are accepted.

use std::path::Path;

use checkpoint::Root;
use model_key::{ModelKey, SubkeySource};
use sealing::{Monitor, SealOptions, SealingError, cloud_export, open_trusted, seal, unlock};
use serde_json::Value;
use weight_transform::Transform;

use crate::fixtures;

fn run(
    operation: &str,
    path: &Path,
    key: Option<&ModelKey>,
    case: &Value,
    target: &Path,
) -> Option<Result<(), SealingError>> {
    let monitor = Monitor::none();
    Some(match operation {
        "seal" => {
            let options = SealOptions {
                transform: Transform::from_name(case["transform"].as_str().unwrap()).unwrap(),
                lock: case["lock"]
                    .as_str()
                    .map(|version| version.parse().unwrap()),
                client: false,
                salt: [1; 16],
            };
            seal(path, key.unwrap(), options, target, &monitor).map(drop)
        }
        "unlock" => unlock(path, key.unwrap(), target, &monitor).map(drop),
        "cloud-export" => {
            let keys = key.map(|key| key as &dyn SubkeySource);
            cloud_export(path, keys, target, &monitor).map(drop)
        }
        "decrypt-tokenizer" => Root::open(path).map_err(Into::into).and_then(|root| {
            open_trusted(&root, key.unwrap()).map(|files| {
                assert!(files.file("tokenizer.json").is_some());
            })
        }),
        _ => return None,
    })
}

/// The message with its causes, as a person sees it.
fn message(error: &SealingError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn each(list: &str, judge: impl Fn(&str, &Value, Result<(), SealingError>, &Path)) -> usize {
    let Some(fixtures) = fixtures::folder() else {
        return 0;
    };
    let index = fixtures::json(&fixtures.join("bad/index.json"));
    let mut ran = 0;
    for case in index[list].as_array().unwrap() {
        let work = tempfile::tempdir().unwrap();
        let target = work.path().join("out");
        let path = fixtures.join("bad").join(case["path"].as_str().unwrap());
        let key = case["key"]
            .as_str()
            .map(|key| fixtures::key(&fixtures, key));
        let operation = case["operation"].as_str().unwrap();
        let Some(result) = run(operation, &path, key.as_ref(), case, &target) else {
            continue;
        };
        ran += 1;
        judge(case["id"].as_str().unwrap(), case, result, work.path());
    }
    ran
}

#[test]
fn every_bad_directory_is_refused_and_nothing_is_left() {
    let ran = each("cases", |id, case, result, work| {
        let Err(error) = result else {
            assert_eq!(case["may_accept"], true, "{id} was accepted");
            return;
        };
        let text = message(&error);
        eprintln!("{id}: {text}");
        assert!(!text.contains('\n'), "{id}: {text}");
        assert_eq!(
            fixtures::files(work),
            Vec::<String>::new(),
            "{id} left files"
        );
        assert_eq!(
            std::fs::read_dir(work).unwrap().count(),
            0,
            "{id} left a folder"
        );
    });
    assert!(ran == 0 || ran == 31, "{ran} cases");
}

#[test]
fn every_control_is_accepted() {
    let ran = each("controls", |id, _, result, _| {
        assert!(result.is_ok(), "{id}: {}", message(&result.unwrap_err()));
    });
    assert!(ran == 0 || ran == 4, "{ran} controls");
}
