//! Lock then unlock is the identity; every implementation gives the same bytes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;
use secret::Secret;
use weight_lock::{
    Domain, Element, Entry, Format, Implementation, Lock, LockError, LockTable, Scan, Version,
    table_digest,
};

fn key(seed: u8) -> Secret<32> {
    Secret::fill_with(|bytes| bytes.fill(seed))
}

/// Finite values of any kind, made from any bytes.
fn finite(element: Element, mut bytes: Vec<u8>, shrink: u32) -> Vec<u8> {
    let width = element.width();
    bytes.truncate(bytes.len() / width * width);
    let top = Domain::widest(element).size() - 1;
    let bits = 8 * width as u32;
    for unit in bytes.chunks_exact_mut(width) {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(unit);
        let code = u64::from_le_bytes(wide);
        let code = match element.format() {
            Format::E2m1x2 => code,
            Format::Float => {
                let sign = code & (1 << (bits - 1));
                sign | ((code & !(1 << (bits - 1))) >> (shrink % bits)).min(top)
            }
            Format::E8m0 | Format::Index => (code >> (shrink % bits)).min(top),
        };
        unit.copy_from_slice(&code.to_le_bytes()[..width]);
    }
    bytes
}

fn domain(element: Element, bytes: &[u8]) -> Option<Domain> {
    let mut scan = Scan::new(element);
    scan.update(0, bytes).unwrap();
    scan.domain()
}

fn any_element() -> impl Strategy<Value = Element> {
    prop::sample::select(Element::ALL.to_vec())
}

proptest! {
    #[test]
    fn locking_then_unlocking_in_any_parts_is_the_identity(
        element in any_element(),
        version in prop::sample::select(vec![Version::V1, Version::V2]),
        bytes in prop::collection::vec(any::<u8>(), 0..6000),
        shrink in 0_u32..64,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        first in prop::sample::select(vec![0_u64, 1, 255, 256, 1 << 20, (1 << 32) - 7]),
        seed in any::<u8>(),
    ) {
        prop_assume!(element.is_coded_by(version));
        let plain = finite(element, bytes, shrink);
        let Some(domain) = domain(element, &plain) else { return Ok(()) };
        let width = element.width();
        let start = first * width as u64;
        let lock = Lock::new(version, &key(seed), domain);
        let mut whole = plain.clone();
        lock.lock(start, &mut whole).unwrap();

        let mut edges: Vec<usize> = cuts.iter().map(|cut| cut.index(plain.len() / width + 1) * width).collect();
        edges.extend([0, plain.len()]);
        edges.sort_unstable();
        let mut parts = plain.clone();
        for edge in edges.windows(2) {
            lock.lock(start + edge[0] as u64, &mut parts[edge[0]..edge[1]]).unwrap();
        }
        prop_assert_eq!(&parts, &whole);
        for edge in edges.windows(2).rev() {
            lock.unlock(start + edge[0] as u64, &mut parts[edge[0]..edge[1]]).unwrap();
        }
        prop_assert_eq!(&parts, &plain);
        // Locked values are in the domain too: a locked tensor scans to no more.
        let mut scan = Scan::new(element);
        scan.update(0, &whole).unwrap();
        prop_assert!(scan.domain().unwrap().size() <= domain.size());
    }

    #[test]
    fn scans_of_parts_merge_to_the_scan_of_the_whole(
        element in any_element(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        shrink in 0_u32..64,
        cut in any::<prop::sample::Index>(),
    ) {
        let plain = finite(element, bytes, shrink);
        let at = cut.index(plain.len() / element.width() + 1) * element.width();
        let mut first = Scan::new(element);
        first.update(0, &plain[..at]).unwrap();
        let mut second = Scan::new(element);
        second.update(at as u64, &plain[at..]).unwrap();
        first.merge(&second);
        prop_assert_eq!(first.domain(), domain(element, &plain));
    }

    #[test]
    fn a_value_outside_the_domain_is_named(
        element in any_element(),
        count in 1_usize..700,
        at in any::<prop::sample::Index>(),
        implementation in prop::sample::select(Implementation::available()),
    ) {
        let bound = Domain::widest(element).size().min(2 << 23);
        let Ok(domain) = Domain::new(element, bound / 2) else { return Ok(()) };
        let width = element.width();
        let mut bytes = vec![0; count * width];
        let unit = at.index(count);
        bytes[unit * width..][..width].copy_from_slice(&domain.size().to_le_bytes()[..width]);
        let lock = Lock::with(implementation, Version::V2, &key(1), domain);
        let expected = LockError::Outside {
            element: 512 + unit as u64 * element.values_per_unit(),
            domain: domain.size(),
            of: element,
        };
        let start = 512 / element.values_per_unit() * width as u64;
        prop_assert_eq!(lock.unlock(start, &mut bytes.clone()), Err(expected.clone()));
        prop_assert_eq!(lock.lock(start, &mut bytes), Err(expected));
    }

    #[test]
    fn any_changed_byte_of_a_record_is_refused_or_changes_the_digest(
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
        version in prop::sample::select(vec![Version::V1, Version::V2]),
    ) {
        let mut table = LockTable::new(version);
        for (name, size) in [("a.weight", 16000), ("b.é\"", 128), ("c", 32640)] {
            table.insert(name, Domain::new(Element::Bf16, size).unwrap()).unwrap();
        }
        let text = table.to_text();
        let mut bytes = text.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        let digest = |table: &LockTable| {
            let entries = table.entries().iter();
            table_digest(version, entries.map(|(name, entry)| (name.as_str(), *entry)))
        };
        let Ok(changed) = std::str::from_utf8(&bytes) else { return Ok(()) };
        if let Ok(parsed) = LockTable::parse(changed, version) {
            // Other white space, or another spelling of the same character, is the same record.
            prop_assert!(digest(&parsed) != digest(&table) || parsed.entries().len() == 3);
            if digest(&parsed) == digest(&table) {
                prop_assert_eq!(parsed.to_text(), text);
            }
        }
    }
}

#[test]
fn all_implementations_agree_on_every_type_at_every_length() {
    for element in Element::ALL {
        for version in [Version::V1, Version::V2] {
            if !element.is_coded_by(version) {
                continue;
            }
            for small in [false, true] {
                let domain = match (small, element) {
                    (true, Element::F32) => Domain::new(element, 1 << 30).unwrap(),
                    (true, _) => continue,
                    (false, _) => Domain::widest(element),
                };
                let longest = finite(
                    element,
                    (0..2000 * element.width())
                        .map(|at| ((at * 7919) >> 3) as u8)
                        .collect(),
                    if small { 2 } else { 0 },
                );
                for length in (0..300).chain([511, 512, 513, 1023, 1024, 1025, 1999, 2000]) {
                    let plain = &longest[..length * element.width()];
                    let at = 100 * element.width() as u64;
                    let locked = Implementation::available()
                        .into_iter()
                        .map(|implementation| {
                            let lock = Lock::with(implementation, version, &key(9), domain);
                            let mut bytes = plain.to_vec();
                            lock.lock(at, &mut bytes).unwrap();
                            let locked = bytes.clone();
                            lock.unlock(at, &mut bytes).unwrap();
                            assert_eq!(bytes, plain, "{element} {version} {implementation:?}");
                            locked
                        });
                    let locked: Vec<_> = locked.collect();
                    assert!(
                        locked.windows(2).all(|pair| pair[0] == pair[1]),
                        "{element} {version}, {length} units"
                    );
                }
            }
        }
    }
}

#[test]
fn parts_of_values_and_streams_past_their_end_are_refused() {
    let lock = Lock::new(Version::V2, &key(1), Domain::widest(Element::Bf16));
    let error = lock.lock(1, &mut [0; 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 1..3 do not hold whole bf16 values"
    );
    assert!(lock.lock(0, &mut [0; 3]).is_err());
    let end = (1_u64 << 36) * 2;
    lock.lock(end - 8, &mut [0; 8]).unwrap();
    assert_eq!(lock.lock(end - 8, &mut [0; 10]), Err(LockError::StreamEnd));
    assert_eq!(
        lock.lock(u64::MAX - 1, &mut [0; 2]),
        Err(LockError::StreamEnd)
    );
}

#[test]
fn the_printed_lock_shows_no_key() {
    let lock = Lock::new(Version::V2, &key(0xAB), Domain::widest(Element::Bf16));
    let printed = format!("{lock:?}");
    assert!(
        !printed.to_lowercase().contains("ab, ab") && !printed.contains("171"),
        "{printed}"
    );
}

#[test]
fn records_of_version_1_and_2_are_written_as_the_reference_writes_them() {
    let domain = Domain::new(Element::Bf16, 128).unwrap();
    let mut table = LockTable::new(Version::V1);
    table.insert("b", domain).unwrap();
    table.insert("aé", domain).unwrap();
    assert_eq!(table.to_text(), r#"{"b": 128, "a\u00e9": 128}"#);
    assert!(table.insert("b", domain).is_err());
    let mut table = LockTable::new(Version::V2);
    table.insert("b", domain).unwrap();
    table.insert("aé", domain).unwrap();
    assert_eq!(
        table.to_text(),
        r#"{"tensors": {"a\u00e9": [128, "float"], "b": [128, "float"]}, "version": "v2"}"#
    );
    let entry = Entry {
        domain: 128,
        format: Format::Float,
    };
    let one = table_digest(Version::V2, [("a", entry), ("b", entry)].into_iter());
    let other = table_digest(Version::V2, [("b", entry), ("a", entry)].into_iter());
    assert_eq!(one, other);
    assert_ne!(
        one,
        table_digest(Version::V1, [("a", entry), ("b", entry)].into_iter())
    );
}
