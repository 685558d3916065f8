//! What two containers differ in, and the map of a file.

#![allow(clippy::unwrap_used, reason = "test support")]

mod fixtures;

use std::convert::Infallible;

use jlm::{
    Container, Difference, Part, Region, Side, Span, compare_pages, compare_planes,
    compare_structure, map_svg, page_runs, parts,
};

fn container(name: &str) -> Option<(Container, Vec<u8>)> {
    let folder = fixtures::folder()?;
    let bytes = std::fs::read(folder.join("containers").join(name)).unwrap();
    let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
    Some((container, bytes))
}

fn compare(left: &(Container, Vec<u8>), right: &(Container, Vec<u8>)) -> Vec<Difference> {
    let mut read = |side, span: Span, out: &mut [u8]| {
        let bytes = if side == Side::Left {
            &left.1
        } else {
            &right.1
        };
        out.copy_from_slice(&bytes[span.offset as usize..span.end().unwrap() as usize]);
        Ok::<_, Infallible>(())
    };
    let mut all = compare_structure(&left.0, &right.0);
    all.extend(compare_planes(&left.0, &right.0, &mut read).unwrap());
    all.extend(compare_pages(&left.0, &right.0, &mut read).unwrap());
    all
}

#[test]
fn a_container_does_not_differ_from_itself() {
    for (name, bytes) in fixtures::containers() {
        let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
        let one = (container, bytes);
        assert_eq!(compare(&one, &one), [], "{name}");
    }
}

#[test]
fn one_byte_of_a_plane_is_found_as_its_plane_and_its_page() {
    let Some(left) = container("hf-qwen3moe-bf16.v27.jlm") else {
        return;
    };
    let block = left.0.mixtures()[0];
    let bank = left
        .0
        .tensor_of(jlm::Role::EXP_UP_BANK, block as i32)
        .unwrap();
    let at = left.0.sheet(bank, 3).unwrap().qs.offset + 5;
    let mut right = left.clone();
    right.1[at as usize] ^= 0x10;
    let length = left.0.sheet(bank, 3).unwrap().qs.length;
    let page = left.0.page_len(Region::Experts);
    assert_eq!(
        compare(&left, &right),
        [
            Difference {
                part: Part::Plane,
                name: format!("block {block} exp_up_bank qs of sheet 3"),
                left: format!("at {at}, 1 of {length} bytes differ"),
                right: format!("at {at}"),
            },
            Difference {
                part: Part::Page,
                name: "expert pages 3".to_owned(),
                left: format!("at {at}, 1 of {page} bytes differ"),
                right: format!("at {at}"),
            },
        ]
    );
}

/// What is after the metadata has no structure of its own: a changed byte is a changed value of the
/// plane it lies in, or padding, and of no other.
#[test]
fn the_ends_of_every_plane_belong_to_it_alone() {
    let Some((name, bytes)) = fixtures::smallest() else {
        return;
    };
    let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
    let left = (container, bytes);
    let mut right = left.clone();
    for entry in left.0.tensors() {
        for sheet in 0..entry.sheets() {
            let planes = left.0.sheet(entry, sheet).unwrap().as_array();
            for plane in planes.into_iter().filter(|plane| plane.length > 0) {
                for at in [plane.offset, plane.end().unwrap() - 1] {
                    right.1[at as usize] ^= 0xff;
                    let found = compare(&left, &right);
                    let parts: Vec<_> = found.iter().map(|found| found.part).collect();
                    let home = match entry.is_dense() {
                        true => Part::Region,
                        false => Part::Page,
                    };
                    assert_eq!(parts, [Part::Plane, home], "{name}: byte {at}");
                    assert!(found[0].name.contains(entry.key.role.name()), "{found:?}");
                    right.1[at as usize] ^= 0xff;
                }
            }
        }
    }
}

#[test]
fn other_types_config_and_version_are_named() {
    let (Some(left), Some(right)) = (
        container("gguf-qwen3-kquants.v27.jlm"),
        container("gguf-qwen3-kquants.v28.jlm"),
    ) else {
        return;
    };
    let found = compare(&left, &right);
    let version = found
        .iter()
        .find(|difference| difference.name == "Version")
        .unwrap();
    assert_eq!((&*version.left, &*version.right), ("27", "28"));
    assert!(
        found
            .iter()
            .all(|difference| difference.part != Part::Plane)
    );

    let other = container("hf-qwen3moe-bf16.v27.jlm").unwrap();
    let found = compare(&left, &other);
    let arch = found
        .iter()
        .find(|difference| difference.name == "arch_name")
        .unwrap();
    assert_eq!((&*arch.left, &*arch.right), ("qwen3", "qwen3moe"));
    let missing = |name: &str| found.iter().find(|d| d.name == name).unwrap();
    assert_eq!(missing("expert pages").left, "-");
    assert_eq!(missing("block 0 exp_up_bank").left, "-");
}

#[test]
fn every_part_of_every_file_is_listed_once_and_drawn() {
    for (name, bytes) in fixtures::containers() {
        let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
        let parts = parts(&container);
        for pair in parts.windows(2) {
            let gap = pair[1].1.offset - pair[0].1.end().unwrap();
            assert!(gap < 4096, "{name}: {pair:?}");
        }
        let runs = page_runs(&container);
        let pages: u64 = [Region::Text, Region::Vision, Region::Experts]
            .map(|region| {
                container
                    .region(region)
                    .length
                    .checked_div(container.page_len(region))
                    .unwrap_or(0)
            })
            .iter()
            .sum();
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), pages);
        for run in &runs {
            let page = container.page_len(run.region);
            assert!(run.in_use > 0 && run.in_use <= page, "{name}: {run:?}");
        }
        let svg = map_svg(&container, &name);
        assert_eq!(svg.matches("class=\"strip\"").count(), parts.len());
        let cells: u64 = parts.iter().map(|(_, span, page)| span.length / page).sum();
        assert_eq!(svg.matches("class=\"page\"").count() as u64, cells);
        for (part, ..) in parts {
            assert!(svg.contains(&format!(">{part}: ")), "{name}: {part}");
        }
    }
}
