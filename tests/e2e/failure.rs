//! Processes that die, a database that goes away: nothing accepted is lost, nothing is done twice.

use std::thread::sleep;
use std::time::Duration;

use chancery_tests::{Service, Signal, Suite};
use serde_json::Value;

use crate::path::{events, seal, texts};

#[test]
fn a_seal_job_survives_the_death_of_any_service_at_any_point() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    let mut jobs = 0;
    for service in Service::ALL {
        // At submission, while the source is read, while files are put, at the end.
        for pause in [0, 60, 250, 700] {
            let model = format!("m{jobs}");
            // The service that was killed last may still be starting, so the submission may be
            // refused. It is made again as the same request, which is one job however often.
            let request = format!("00000000-0000-7000-8000-{jobs:012}");
            let submission = [
                "seal",
                "submit",
                "tiny-qwen3",
                "--key",
                "demo",
                "--model",
                &model,
                "--request-id",
                &request,
            ];
            let submitted = suite.eventually(&submission, |job| job["id"].is_string());
            sleep(Duration::from_millis(pause));
            suite.kill(service);
            let id = submitted["id"].as_str().unwrap();
            let ended = suite.eventually(&["seal", "show", id], |job| {
                !matches!(job["state"].as_str(), Some("queued" | "running"))
            });
            assert_eq!(
                ended["state"],
                "succeeded",
                "{} killed after {pause} ms: {ended:#}",
                service.binary()
            );
            assert_eq!(ended["artifacts"].as_array().unwrap().len(), 2, "{ended:#}");
            jobs += 1;
        }
    }
    // Every job finished once: one receipt for each of its two artifacts.
    let all = suite.eventually(&["receipts", "list"], |receipts| receipts.is_array());
    let count = |event: &str| {
        let is = |receipt: &&Value| receipt["event"] == event;
        all.as_array().unwrap().iter().filter(is).count()
    };
    assert_eq!(count("sealed"), 2 * jobs);
    assert_eq!(count("registered"), 2 * jobs);
    suite.eventually(&["model", "load", "m0"], |model| model["state"] == "ready");
    assert_eq!(texts(&suite, "m0").len(), 6);
}

#[test]
fn a_lost_database_is_a_clear_status_and_loses_nothing() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "before"]);
    seal(&suite, "tiny-qwen3", "before", "tiny", &[]);
    let before = events(&suite);
    suite.signal_postgres(Signal::STOP);
    let reason = suite.refused(&["keys", "create", "during"]);
    suite.signal_postgres(Signal::CONT);
    assert!(
        reason.contains("UNAVAILABLE") || reason.contains("deadline") || reason.contains("Timeout"),
        "{reason}"
    );
    suite.eventually(&["keys", "list"], |keys| {
        keys.to_string().contains("before")
    });
    let after = suite.eventually(&["receipts", "list"], |list| list.is_array());
    assert!(after.as_array().unwrap().len() >= before.len());
    suite.eventually(&["keys", "create", "after"], |key| key["state"] == "active");
}

#[test]
fn a_restart_continues_with_the_same_data() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    seal(&suite, "tiny-qwen3", "demo", "tiny", &[]);
    let before = events(&suite);
    suite.down();
    suite.up(&[&chancery_tests::data()]);
    assert_eq!(events(&suite), before);
    suite.ok(&["model", "load", "tiny"]);
    assert_eq!(texts(&suite, "tiny").len(), 6);
}

#[test]
fn a_full_disk_fails_the_job_clearly_and_the_next_one_works() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    let config = suite.state().join("config/storage-node.toml");
    let good = std::fs::read_to_string(&config).unwrap();
    // A node that must leave more free than any disk has is a node whose disk is full.
    let full = good.replace("[storage]", "[storage]\nreserve_bytes = 1000000000000000");
    assert_ne!(full, good);
    std::fs::write(&config, full).unwrap();
    suite.kill(Service::StorageNode);
    suite.eventually(&["storage", "scrub"], |_| true);
    let submit = [
        "seal",
        "submit",
        "tiny-qwen3",
        "--key",
        "demo",
        "--model",
        "tiny",
    ];
    let job = suite.json(&submit);
    let id = job["id"].as_str().unwrap();
    let ended = suite.eventually(&["seal", "show", id], |job| job["state"] == "failed");
    assert_eq!(ended["failure"]["reason"], "no-space", "{ended:#}");
    let artifacts = suite.json(&["artifacts", "list"]);
    assert_eq!(artifacts.as_array().unwrap().len(), 0, "{artifacts:#}");

    std::fs::write(&config, good).unwrap();
    suite.kill(Service::StorageNode);
    suite.eventually(&["storage", "scrub"], |_| true);
    seal(&suite, "tiny-qwen3", "demo", "tiny", &[]);
}
