//! Page-in from a storage node on loopback, mutual TLS included, against page-in from the same file on
//! the local disk, in one run: `cargo bench -p inference-node --bench page_in`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time, prints and fails loudly"
)]

#[path = "../../../crates/pager/benches/blocks/mod.rs"]
mod blocks;
#[path = "../../../crates/sealed-jlm/tests/model/mod.rs"]
mod model;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use api::client::{Client, Retry};
use api::v1::put_blob_request::Part;
use api::v1::{PutBlobHeader, PutBlobRequest};
use bytes::Bytes;
use capability::{CertificateThumbprint, Claims, Confirmation, mint};
use ed25519_dalek::SigningKey;
use identifiers::{CapabilityId, Fingerprint, KeyId, Role, Sha256Digest, SpiffeId};
use inference_node::{Blob, ModelSettings, Token};
use model_key::SubkeySource;
use pager::{
    ArrayGeometry, ContainerUnsealer, Geometry, KeyRing, PageId, PageSource, Pager, PlainSource,
    SealedSource,
};
use rustix::fs::{Advice, fadvise};
use service_runtime::trust::{CapabilityKey, PublicKey};
use service_runtime::{
    CancellationToken, Clock, Identity, Running, ServerSettings, SystemClock, TrustFile,
};
use sha2::{Digest as _, Sha256};
use storage_node::{Config, StorageSettings};
use tokio::runtime::{Builder, Runtime};
use workload_identity::dev_ca::{self, DevCa};

const PAGE: u64 = 64 << 20;
const ROUNDS: usize = 12;
/// Ranges of a page in flight.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

fn main() {
    let key = model::key();
    let sealed = model::seal_with(&blocks::two(PAGE), 256 << 10, &key);
    let header = Arc::new(sealed.header().unwrap());
    let h = header.container().header();
    let text = ArrayGeometry {
        offset: h.data_off,
        pages: h.n_blocks,
        page_size: h.page_size,
    };
    let none = ArrayGeometry::default();
    let geometry = Geometry::new(text, none, none).unwrap();
    let ring = Arc::new(KeyRing::new());
    for unit in header.container().units() {
        ring.insert(unit, key.subkey(&header.subkey_id(unit)).unwrap());
    }
    let world = World::new();
    let blob = world.put(&sealed.bytes);
    let file = world.blob_file(blob.digest);
    let unsealer = || ContainerUnsealer::new(header.clone(), ring.clone());
    let local = || direct_io::File::open(&file).unwrap();

    // The same bytes, taken as they are or opened: what pages of plain and of sealed containers cost.
    let mut rows = vec![
        Row::new("local disk, plain", 0, PlainSource::new(local(), geometry)),
        Row::new(
            "local disk, sealed",
            1,
            SealedSource::new(local(), geometry, unsealer()),
        ),
    ];
    for streams in STREAMS {
        let blob = Arc::new(world.blob(blob, streams));
        let plain = PlainSource::new(blob.clone(), geometry);
        let sealed = SealedSource::new(blob, geometry, unsealer());
        rows.push(Row::new(&format!("{streams} streams, plain"), 0, plain));
        rows.push(Row::new(&format!("{streams} streams, sealed"), 1, sealed));
        if streams == ModelSettings::default().streams {
            let of_streams = rows.len() - 2;
            for which in [of_streams, of_streams + 1] {
                rows.push(rows[which].reading_disk());
            }
        }
    }
    let pagers: Vec<_> = rows
        .iter()
        .map(|row| Pager::new(row.source.clone(), geometry, geometry.largest_page()).unwrap())
        .collect();
    for pager in &pagers {
        page_in(pager, 1);
    }
    let stored = std::fs::File::open(&file).unwrap();
    for round in 0..ROUNDS {
        let page = (round % 2) as u32;
        for turn in 0..rows.len() {
            // Each takes each place in a round.
            let which = (round + turn) % rows.len();
            let row = &mut rows[which];
            if row.reading_disk {
                fadvise(&stored, 0, None, Advice::DontNeed).unwrap();
            }
            let cpu = cpu_seconds();
            row.times.push(page_in(&pagers[which], page));
            row.cpu += cpu_seconds() - cpu;
        }
    }
    let page = geometry.largest_page() as f64;
    println!("a page of {:.1} MB", page / 1e6);
    let best: Vec<_> = rows.iter().map(Row::best).collect();
    for (row, time) in rows.iter().zip(&best) {
        println!(
            "{:36} {:6.0} MB/s  {:4.2} of local  {:.2} processor seconds a GB",
            row.name,
            page / time.as_secs_f64() / 1e6,
            best[row.local].as_secs_f64() / time.as_secs_f64(),
            row.processor_seconds(page),
        );
    }
    // Pages of plain containers are not opened.
    let opening = rows[1].processor_seconds(page) - rows[0].processor_seconds(page);
    let parts = parts(&sealed.bytes, opening);
    for (part, seconds) in parts {
        println!("{part:36} {seconds:42.2} processor seconds a GB");
    }
    let sum: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let cores = thread::available_parallelism().unwrap().get() as f64;
    println!(
        "{:36} {:6.0} MB/s  {:4.2} of local  {sum:.2} processor seconds a GB",
        format!("the least on {cores} cores, plain"),
        cores / sum * 1e3,
        cores / sum * 1e9 * best[0].as_secs_f64() / page,
    );
}

/// One way of reading the page.
struct Row {
    name: String,
    /// The row it is compared with.
    local: usize,
    source: Arc<dyn PageSource>,
    /// Whether the storage node has to read its disk for it.
    reading_disk: bool,
    times: Vec<Duration>,
    cpu: f64,
}

impl Row {
    fn new(name: &str, local: usize, source: impl PageSource + 'static) -> Self {
        Self {
            name: name.to_owned(),
            local,
            source: Arc::new(source),
            reading_disk: false,
            times: Vec::new(),
            cpu: 0.0,
        }
    }

    fn reading_disk(&self) -> Self {
        Self {
            name: format!("{}, from the node's disk", self.name),
            local: self.local,
            source: self.source.clone(),
            reading_disk: true,
            times: Vec::new(),
            cpu: 0.0,
        }
    }

    /// For a GB, all threads together.
    fn processor_seconds(&self, page: f64) -> f64 {
        self.cpu / self.times.len() as f64 / page * 1e9
    }

    fn best(&self) -> Duration {
        *self.times.iter().min().unwrap()
    }
}

/// Reads a page into the frame of the other.
fn page_in(pager: &Pager, page: u32) -> Duration {
    timed(|| drop(black_box(pager.get(PageId::text(page)).unwrap())))
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// What every byte costs however the node and its client are written, in processor seconds a GB: the
/// least of several. `opening` is AES-256-GCM as the sealed pages have it.
fn parts(bytes: &[u8], opening: f64) -> [(&'static str, f64); 4] {
    let least = |mut work: Box<dyn FnMut() + '_>| {
        let times = (0..5).map(|_| {
            let before = cpu_seconds();
            work();
            (cpu_seconds() - before) / bytes.len() as f64 * 1e9
        });
        times.fold(f64::MAX, f64::min)
    };
    let hashing = least(Box::new(|| {
        black_box(Sha256::digest(bytes));
    }));
    let mut copy = vec![0; bytes.len()];
    copy.copy_from_slice(bytes);
    let copying = least(Box::new(|| {
        copy.copy_from_slice(black_box(bytes));
    }));
    let sockets = least(Box::new(|| over_loopback(bytes, &mut copy)));
    [
        ("SHA-256 of the chunks", hashing),
        ("AES-256-GCM, sealing and opening", 2.0 * opening),
        ("loopback TCP, both ends", sockets),
        ("copies to and from TLS, two", 2.0 * copying),
    ]
}

/// Sends everything to another thread, in writes as long as four TLS records.
fn over_loopback(bytes: &[u8], out: &mut [u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| receiver.read_exact(out).unwrap());
        for part in bytes.chunks(64 << 10) {
            sender.write_all(part).unwrap();
        }
    });
}

/// What this process has used, storage node and all, to a hundredth of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name: state, then numbers; user and system time are the 14th and 15th field.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(2);
    times
        .map(|ticks| ticks.parse::<f64>().unwrap() / 100.0)
        .sum()
}

/// A storage node with a runtime of its own, and the inference node's.
struct World {
    folder: tempfile::TempDir,
    ca: DevCa,
    running: Running,
    node: Runtime,
    _storage: Runtime,
}

/// What a manifest says of a blob.
#[derive(Clone, Copy)]
struct Stored {
    digest: Sha256Digest,
    size: u64,
    chunk_root: Sha256Digest,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ca = dev_ca::create(&folder.path().join("ca"), DOMAIN, now()).unwrap();
        let trust = folder.path().join("trust.toml");
        let capability_key = CapabilityKey {
            kid: "first".to_owned(),
            public_key: PublicKey(signing_key().verifying_key().to_bytes()),
        };
        let file = TrustFile {
            log: format!("{DOMAIN}/log+00000000+AQ=="),
            signers: vec![],
            capability_keys: vec![capability_key],
        };
        std::fs::write(&trust, file.to_toml()).unwrap();
        let config = Config {
            server: ServerSettings::loopback(),
            identity: ca.write(Role::Storage, "one", now(), HOUR).unwrap().into(),
            log: Default::default(),
            storage: StorageSettings::in_folder(folder.path().join("blobs")),
            trust,
            capability_issuer: key_service(),
        };
        let runtime = || Builder::new_multi_thread().enable_all().build().unwrap();
        let storage = runtime();
        let running = storage.block_on(async {
            let app = config.build().await.unwrap();
            app.serve(CancellationToken::new()).await.unwrap()
        });
        Self {
            folder,
            ca,
            running,
            node: runtime(),
            _storage: storage,
        }
    }

    fn identity(&self, role: Role) -> Arc<Identity> {
        let files = self.ca.write(role, "one", now(), HOUR).unwrap();
        Identity::load(files).unwrap()
    }

    fn client(&self, identity: &Arc<Identity>) -> Client {
        let _inside = self.node.enter();
        Client::connect(&self.running.endpoint(), identity, Role::Storage).unwrap()
    }

    fn put(&self, bytes: &[u8]) -> Stored {
        let digest = Sha256Digest::new(Sha256::digest(bytes).into());
        let header = Part::Header(PutBlobHeader {
            digest: digest.to_string(),
            size: bytes.len() as u64,
        });
        let data = bytes.chunks(1 << 20);
        let data = data.map(|part| Part::Data(Bytes::copy_from_slice(part)));
        let messages: Vec<_> = std::iter::once(header)
            .chain(data)
            .map(|part| PutBlobRequest { part: Some(part) })
            .collect();
        let client = self.client(&self.identity(Role::Sealer));
        let info = self.node.block_on(async {
            let mut storage = client.storage_service();
            storage.put_blob(tokio_stream::iter(messages)).await
        });
        let info = info.unwrap().into_inner();
        Stored {
            digest,
            size: info.size,
            chunk_root: info.chunk_root.parse().unwrap(),
        }
    }

    /// The blob as an inference node has it, on a connection of its own.
    fn blob(&self, stored: Stored, streams: usize) -> Blob {
        let identity = self.identity(Role::Inference);
        let own = identity.own();
        let claims = Claims {
            jti: CapabilityId::from_parts(now() * 1000, &[1; 10]),
            iss: key_service(),
            sub: own.spiffe,
            iat: now(),
            nbf: now(),
            exp: now() + 300,
            cnf: Confirmation {
                x5t_s256: CertificateThumbprint::new(own.cert_sha256),
            },
            artifact: Sha256Digest::new([1; 32]),
            key_id: KeyId::from_parts(0, &[2; 10]),
            fingerprint: Fingerprint::new([3; 8]),
            epoch: 0,
            blobs: vec![stored.digest],
            units: vec![],
        };
        Blob {
            client: self.client(&identity),
            digest: stored.digest,
            size: stored.size,
            chunk_root: stored.chunk_root,
            token: Token::new(&mint(&signing_key(), "first", &claims).unwrap()),
            runtime: self.node.handle().clone(),
            stop: CancellationToken::new(),
            streams,
            retry: Retry::new(1),
        }
    }

    fn blob_file(&self, digest: Sha256Digest) -> std::path::PathBuf {
        let hex = digest.to_hex();
        self.folder
            .path()
            .join("blobs/blobs")
            .join(&hex[..2])
            .join(hex)
    }
}

fn signing_key() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

fn key_service() -> SpiffeId {
    SpiffeId::new(DOMAIN, Role::KeyService, "one").unwrap()
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

const DOMAIN: &str = "chancery.test";
const HOUR: Duration = Duration::from_secs(3600);
