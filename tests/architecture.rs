//! The layers and the five bans of ARCHITECTURE.md, checked on what cargo and the sources say.
//! Every failure prints the illegal path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Every workspace package and its layer. Arrows point to lower layers.
const LAYERS: &[(&str, u8)] = &[
    ("codec", 0),
    ("identifiers", 0),
    ("secret", 0),
    ("capability", 1),
    ("jlm", 1),
    ("key-wrap", 1),
    ("model-key", 1),
    ("receipt", 1),
    ("release-policy", 1),
    ("sealed-jlm", 1),
    ("shard-identity", 1),
    ("tlog", 1),
    ("trusted-blob", 1),
    ("weight-lock", 1),
    ("weight-transform", 1),
    ("blob-store", 2),
    ("checkpoint", 2),
    ("convert", 2),
    ("database", 2),
    ("direct-io", 2),
    ("engine", 2),
    ("gguf", 2),
    ("local-postgres", 2),
    ("pager", 2),
    ("registry-domain", 2),
    ("sealing", 2),
    ("text", 2),
    ("api", 3),
    ("custody", 3),
    ("key-client", 3),
    ("proto", 3),
    ("service-runtime", 3),
    ("telemetry", 3),
    ("workload-identity", 3),
    ("chancery", 4),
    ("inference-node", 4),
    ("key-service", 4),
    ("registry", 4),
    ("sealer", 4),
    ("storage-node", 4),
    ("chancery-tests", 5),
];

/// The arrows allowed inside a layer.
const SIDEWAYS: &[(&str, &str)] = &[
    ("key-wrap", "model-key"),
    ("sealed-jlm", "jlm"),
    ("sealed-jlm", "model-key"),
    ("sealed-jlm", "tlog"),
    ("trusted-blob", "model-key"),
    ("weight-lock", "model-key"),
    ("weight-transform", "model-key"),
    ("receipt", "shard-identity"),
    ("checkpoint", "direct-io"),
    ("convert", "checkpoint"),
    ("convert", "gguf"),
    ("database", "registry-domain"),
    ("engine", "pager"),
    ("pager", "direct-io"),
    ("sealing", "checkpoint"),
    ("api", "proto"),
    ("api", "workload-identity"),
    ("custody", "api"),
    ("custody", "service-runtime"),
    ("key-client", "api"),
    ("key-client", "proto"),
    ("service-runtime", "api"),
    ("service-runtime", "proto"),
    ("service-runtime", "telemetry"),
    ("service-runtime", "workload-identity"),
];

/// Ban 1: below layer 3 nothing names these.
const TRANSPORT: &[&str] = &[
    "tonic",
    "tonic-prost",
    "prost",
    "hyper",
    "hyper-util",
    "rustls",
    "tokio-rustls",
];

/// Ban 4: the crates that may hold `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &[
    "direct-io",
    "jlm",
    "weight-lock",
    "weight-transform",
    "engine",
];

/// Ban 5: these cannot reach a crate that holds secrets.
const KEYLESS: &[&str] = &[
    "storage-node",
    "blob-store",
    "tlog",
    "receipt",
    "capability",
    "api",
    "service-runtime",
];
const SECRET_HOLDERS: &[&str] = &["secret", "model-key", "key-wrap"];

#[test]
fn arrows_point_down() {
    let workspace = Workspace::load();
    let mut illegal = Vec::new();
    for (from, to) in workspace.edges() {
        let (above, below) = (workspace.layer(&from), workspace.layer(&to));
        let sideways = SIDEWAYS.contains(&(from.as_str(), to.as_str()));
        if below > above || (below == above && !sideways) {
            illegal.push(format!("{from} (L{above}) -> {to} (L{below})"));
        }
    }
    assert!(illegal.is_empty(), "illegal arrows: {illegal:#?}");
}

#[test]
fn every_package_has_a_layer_and_a_use() {
    let workspace = Workspace::load();
    let known: BTreeSet<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    let present: BTreeSet<&str> = workspace.packages.keys().map(String::as_str).collect();
    assert_eq!(present, known, "LAYERS and the workspace differ");
    let used: BTreeSet<String> = workspace.edges().into_iter().map(|(_, to)| to).collect();
    let unused: Vec<&str> = LAYERS
        .iter()
        .filter(|(name, layer)| *layer < 4 && !used.contains(*name))
        .map(|(name, _)| *name)
        .collect();
    assert!(unused.is_empty(), "crates that nothing uses: {unused:?}");
}

#[test]
fn below_the_api_nothing_names_the_transport() {
    let workspace = Workspace::load();
    let mut illegal = Vec::new();
    for package in workspace.packages.values().filter(|p| p.layer < 3) {
        for dependency in package
            .external
            .iter()
            .filter(|d| TRANSPORT.contains(&d.as_str()))
        {
            illegal.push(format!("{} -> {dependency}", package.name));
        }
    }
    assert!(illegal.is_empty(), "{illegal:#?}");
}

#[test]
fn format_crates_have_no_io_clock_or_randomness() {
    const WORDS: &[&str] = &[
        "tokio::",
        "std::fs",
        "std::net",
        "SystemTime",
        "Instant::now",
        "std::env",
        "thread_rng",
        "rand::rng",
        "SysRng",
        "OsRng",
        "getrandom::",
    ];
    const CRATES: &[&str] = &["tokio", "getrandom", "tempfile", "memmap2"];
    let workspace = Workspace::load();
    let mut illegal = Vec::new();
    for package in workspace.packages.values().filter(|p| p.layer < 2) {
        for dependency in package
            .external
            .iter()
            .filter(|d| CRATES.contains(&d.as_str()))
        {
            illegal.push(format!("{} -> {dependency}", package.name));
        }
        for (file, number, line) in package.source_lines() {
            for word in WORDS.iter().filter(|word| line.contains(**word)) {
                illegal.push(format!("{}:{number}: {word}", file.display()));
            }
        }
    }
    assert!(illegal.is_empty(), "{illegal:#?}");
}

#[test]
fn only_database_names_sqlx() {
    let workspace = Workspace::load();
    let namers: Vec<&str> = workspace
        .packages
        .values()
        .filter(|p| p.external.contains("sqlx"))
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(namers, ["database"]);
}

#[test]
fn unsafe_code_is_fenced_in_and_explained() {
    let workspace = Workspace::load();
    let mut illegal = Vec::new();
    for package in workspace.packages.values() {
        let lines = package.source_lines();
        for (at, (file, number, line)) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let opens_unsafe = ["unsafe {", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|word| code.contains(word));
            if !opens_unsafe && !code.contains("unsafe fn") {
                continue;
            }
            let place = format!("{}:{number}", file.display());
            if !MAY_BE_UNSAFE.contains(&package.name.as_str()) {
                illegal.push(format!("{place}: unsafe outside {MAY_BE_UNSAFE:?}"));
            } else if opens_unsafe {
                let explained = lines[at.saturating_sub(8)..=at]
                    .iter()
                    .any(|(other, _, text)| other == file && text.contains("SAFETY:"));
                if !explained {
                    illegal.push(format!("{place}: unsafe without a SAFETY comment"));
                }
            }
        }
    }
    assert!(illegal.is_empty(), "{illegal:#?}");
}

#[test]
fn storage_and_verification_cannot_reach_a_secret() {
    let workspace = Workspace::load();
    for start in KEYLESS {
        for holder in SECRET_HOLDERS {
            if let Some(path) = workspace.path(start, holder) {
                panic!("illegal path: {}", path.join(" -> "));
            }
        }
    }
}

struct Workspace {
    packages: BTreeMap<String, Package>,
}

struct Package {
    name: String,
    layer: u8,
    root: PathBuf,
    internal: BTreeSet<String>,
    external: BTreeSet<String>,
}

impl Workspace {
    fn load() -> Self {
        let metadata: Metadata = MetadataCommand::new()
            .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
            .no_deps()
            .exec()
            .expect("cargo metadata runs");
        let members: BTreeSet<String> = metadata
            .packages
            .iter()
            .map(|package| package.name.to_string())
            .collect();
        let packages = metadata
            .packages
            .iter()
            .map(|package| {
                let name = package.name.to_string();
                let normal = package
                    .dependencies
                    .iter()
                    .filter(|dependency| dependency.kind == DependencyKind::Normal)
                    .map(|dependency| dependency.name.clone());
                let (internal, external) = normal.partition(|name| members.contains(name));
                let layer = LAYERS
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map_or(u8::MAX, |(_, layer)| *layer);
                let root = package
                    .manifest_path
                    .parent()
                    .expect("a manifest has a folder");
                let package = Package {
                    layer,
                    root: root.as_std_path().to_path_buf(),
                    internal,
                    external,
                    name: name.clone(),
                };
                (name, package)
            })
            .collect();
        Self { packages }
    }

    fn layer(&self, name: &str) -> u8 {
        self.packages[name].layer
    }

    fn edges(&self) -> Vec<(String, String)> {
        self.packages
            .values()
            .flat_map(|p| p.internal.iter().map(|to| (p.name.clone(), to.clone())))
            .collect()
    }

    /// The shortest chain of dependencies from one package to another.
    fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut reached_from: BTreeMap<String, String> = BTreeMap::new();
        let mut queue = VecDeque::from([from.to_owned()]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut path = vec![at];
                while let Some(previous) = reached_from.get(path.last().expect("not empty")) {
                    path.push(previous.clone());
                }
                path.reverse();
                return Some(path);
            }
            for next in &self.packages[&at].internal {
                if next != from && !reached_from.contains_key(next) {
                    reached_from.insert(next.clone(), at.clone());
                    queue.push_back(next.clone());
                }
            }
        }
        None
    }
}

impl Package {
    /// Every line of the package's `src`, up to the test module at the end of a file.
    fn source_lines(&self) -> Vec<(PathBuf, usize, String)> {
        let mut files = Vec::new();
        collect(&self.root.join("src"), &mut files);
        files.sort();
        let mut lines = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file is readable");
            for (at, line) in text.lines().enumerate() {
                if line.starts_with("#[cfg(test)]") {
                    break;
                }
                lines.push((file.clone(), at + 1, line.to_owned()));
            }
        }
        lines
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a folder entry is readable").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
