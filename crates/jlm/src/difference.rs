//! What two containers do not have in common: fields, tensors, and the bytes of planes and pages.

use std::fmt;

use serde_json::{Value, json};

use crate::container::Container;
use crate::dump::{config_fields, header_fields};
use crate::span::Span;
use crate::table::TensorEntry;
use crate::unit::Region;

/// The part of a container that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A field of the header.
    Header,
    /// A field of the config record.
    Config,
    /// A field of the writer's fingerprint.
    Fingerprint,
    /// An entry of the tensor table.
    Tensor,
    /// The bytes of a tensor's plane.
    Plane,
    /// The bytes of a region that is one unit: vocab, vision config or dense.
    Region,
    /// The bytes of a page.
    Page,
}

impl Part {
    /// The part's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Config => "config",
            Self::Fingerprint => "fingerprint",
            Self::Tensor => "tensor",
            Self::Plane => "plane",
            Self::Region => "region",
            Self::Page => "page",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that is not the same in two containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What kind of thing it is.
    pub part: Part,
    /// Which one.
    pub name: String,
    /// What the first container has; `-` when it has no such thing.
    pub left: String,
    /// What the second container has.
    pub right: String,
}

/// Differences of the header, config, fingerprint and tensor table.
#[must_use]
pub fn compare_structure(left: &Container, right: &Container) -> Vec<Difference> {
    let mut out = Vec::new();
    let version = |container: &Container| {
        let mut fields = header_fields(container.header());
        fields["Version"] = container.header().version.number().into();
        fields
    };
    compare_fields(Part::Header, &version(left), &version(right), &mut out);
    let (a, b) = (config_fields(left.config()), config_fields(right.config()));
    compare_fields(Part::Config, &a, &b, &mut out);
    let fingerprint = |container: &Container| {
        let fingerprint = container.fingerprint();
        json!({
            "Device": fingerprint.device,
            "Host": fingerprint.host,
            "VRAM": fingerprint.vram,
            "Writer": fingerprint.writer,
        })
    };
    let (a, b) = (fingerprint(left), fingerprint(right));
    compare_fields(Part::Fingerprint, &a, &b, &mut out);
    for entry in left.tensors() {
        match right.tensor(entry.key) {
            None => out.push(tensor(entry, describe(entry), ABSENT.to_owned())),
            Some(other) if describe(entry) != describe(other) => {
                out.push(tensor(entry, describe(entry), describe(other)));
            }
            Some(_) => {}
        }
    }
    for entry in right.tensors() {
        if left.tensor(entry.key).is_none() {
            out.push(tensor(entry, ABSENT.to_owned(), describe(entry)));
        }
    }
    out
}

/// Differences of the bytes of planes, sheet by sheet, of the tensors that both containers have in
/// the same type and shape, wherever they lie. `read` fills a buffer from a span of the left
/// ([`Side::Left`]) or the right file; at most 2 MiB are in memory.
///
/// # Errors
/// The first error of `read`.
pub fn compare_planes<E>(
    left: &Container,
    right: &Container,
    read: ReadSide<'_, E>,
) -> Result<Vec<Difference>, E> {
    let mut out = Vec::new();
    for entry in left.tensors() {
        let Some(other) = right.tensor(entry.key) else {
            continue;
        };
        if (entry.dtype, &entry.dims) != (other.dtype, &other.dims) {
            continue;
        }
        for at in 0..entry.sheets() {
            let (Some(a), Some(b)) = (left.sheet(entry, at), right.sheet(other, at)) else {
                break;
            };
            let planes = a.as_array().into_iter().zip(b.as_array());
            for (plane, (a, b)) in PLANES.into_iter().zip(planes) {
                if let Some((left, right)) = compare_bytes(a, b, read)? {
                    let sheet = match entry.sheets() {
                        1 => String::new(),
                        _ => format!(" of sheet {at}"),
                    };
                    out.push(Difference {
                        part: Part::Plane,
                        name: format!("{} {plane}{sheet}", label(entry)),
                        left,
                        right,
                    });
                }
            }
        }
    }
    Ok(out)
}

/// Differences of the bytes of regions and pages; an expert's page counts as a page. `read` is as
/// for [`compare_planes`].
///
/// # Errors
/// The first error of `read`.
pub fn compare_pages<E>(
    left: &Container,
    right: &Container,
    read: ReadSide<'_, E>,
) -> Result<Vec<Difference>, E> {
    let mut out = Vec::new();
    for region in Region::ALL {
        let (a, b) = (left.region(region), right.region(region));
        let (page_a, page_b) = (left.page_len(region), right.page_len(region));
        let is_paged = matches!(region, Region::Text | Region::Vision | Region::Experts);
        let part = if is_paged { Part::Page } else { Part::Region };
        if page_a != page_b || a.length != b.length {
            out.push(Difference {
                part,
                name: region.name().to_owned(),
                left: extent(a, page_a),
                right: extent(b, page_b),
            });
            continue;
        }
        for at in 0..a.length.checked_div(page_a).unwrap_or(0) {
            let page = |region: Span| Span::new(region.offset + at * page_a, page_a);
            if let Some((left, right)) = compare_bytes(page(a), page(b), read)? {
                let name = match is_paged {
                    true => format!("{region} {at}"),
                    false => region.name().to_owned(),
                };
                out.push(Difference {
                    part,
                    name,
                    left,
                    right,
                });
            }
        }
    }
    Ok(out)
}

/// Which of two containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

/// Fills a buffer with the bytes of a span of one of two files.
pub type ReadSide<'a, E> = &'a mut dyn FnMut(Side, Span, &mut [u8]) -> Result<(), E>;

fn compare_fields(part: Part, left: &Value, right: &Value, out: &mut Vec<Difference>) {
    let (Value::Object(a), Value::Object(b)) = (left, right) else {
        return;
    };
    for (name, a) in a {
        let b = b.get(name).unwrap_or(&Value::Null);
        if a != b {
            out.push(Difference {
                part,
                name: name.clone(),
                left: shown(a),
                right: shown(b),
            });
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn tensor(entry: &TensorEntry, left: String, right: String) -> Difference {
    Difference {
        part: Part::Tensor,
        name: label(entry),
        left,
        right,
    }
}

/// A tensor's role, block and index, as one name.
fn label(entry: &TensorEntry) -> String {
    let key = entry.key;
    let mut text = String::new();
    if key.block >= 0 {
        text.push_str(&format!("block {} ", key.block));
    }
    text.push_str(key.role.name());
    if key.index >= 0 {
        text.push_str(&format!(" {}", key.index));
    }
    text
}

fn describe(entry: &TensorEntry) -> String {
    format!(
        "{} {} {:?} at {}, {}, {}",
        entry.name,
        entry.dtype.name(),
        entry.dims,
        entry.qs_off,
        entry.d_off,
        entry.sc_off
    )
}

fn extent(region: Span, page: u64) -> String {
    match region.length.checked_div(page) {
        None | Some(0) => ABSENT.to_owned(),
        Some(1) => format!("{} bytes", region.length),
        Some(pages) => format!("{pages} of {page} bytes"),
    }
}

/// `None` when the spans, which have one length, hold the same bytes; else where they first differ.
fn compare_bytes<E>(
    left: Span,
    right: Span,
    read: ReadSide<'_, E>,
) -> Result<Option<(String, String)>, E> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let (mut first, mut differing) = (None, 0u64);
    let mut at = 0;
    while at < left.length {
        let step = PIECE.min(left.length - at);
        a.resize(step as usize, 0);
        b.resize(step as usize, 0);
        read(Side::Left, Span::new(left.offset + at, step), &mut a)?;
        read(Side::Right, Span::new(right.offset + at, step), &mut b)?;
        if a != b {
            for (index, _) in a.iter().zip(&b).enumerate().filter(|(_, (a, b))| a != b) {
                first.get_or_insert(at + index as u64);
                differing += 1;
            }
        }
        at += step;
    }
    Ok(first.map(|first| {
        let place = |span: Span| format!("at {}", span.offset + first);
        let count = format!("{differing} of {} bytes differ", left.length);
        (format!("{}, {count}", place(left)), place(right))
    }))
}

const ABSENT: &str = "-";
const PLANES: [&str; 3] = ["qs", "d", "sc"];
/// Bytes of each file that are compared at a time.
const PIECE: u64 = 1 << 20;
