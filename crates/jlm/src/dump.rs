//! Everything a reader sees of a container, as JSON: fields, spans, and hashes of what they hold.

use serde_json::{Map, Number as JsonNumber, Value, json};
use sha2::{Digest, Sha256};

use crate::config::{Config, Flags};
use crate::container::Container;
use crate::dtype::PlaneLens;
use crate::error::JlmError;
use crate::header::{HEADER_LEN, Header};
use crate::pack::{PlaneBytes, Sheet};
use crate::record::Number;
use crate::span::{Span, align};
use crate::table::TensorEntry;
use crate::vocab::{PreOp, Vocab};

/// Why a container could not be dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError<E> {
    /// The container is refused.
    #[error("the container is refused")]
    Refused(#[from] JlmError),
    /// The file could not be read.
    #[error("the container could not be read")]
    Read(#[source] E),
}

/// Fills a buffer with the bytes of a span of the file.
pub type ReadSpan<'a, E> = &'a mut dyn FnMut(Span, &mut [u8]) -> Result<(), E>;

/// Dumps a plain container of `file_len` bytes, called `name`. One sheet is in memory at a time.
pub fn dump<E>(name: &str, file_len: u64, read: ReadSpan<'_, E>) -> Result<Value, DumpError<E>> {
    let start = fetch(read, Span::new(0, file_len.min(HEADER_LEN)))?;
    let header = Header::decode(&start, file_len)?;
    let meta = fetch(read, Span::new(0, header.meta_len()))?;
    let container = Container::decode(&meta, file_len)?;
    let vocab = container.vocab(&meta)?;
    let section = |span: Span| &meta[span.offset as usize..(span.offset + span.length) as usize];
    let tensors = container
        .tensors()
        .iter()
        .map(|entry| tensor(&container, entry, read))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sections = Map::new();
    for (key, span) in [
        ("config", header.config),
        ("fingerprint", header.fingerprint),
        ("table", header.table),
        ("vision", header.vision),
        ("vocab", header.vocab),
    ] {
        sections.insert(key.to_owned(), place(span, sha256(section(span))));
    }
    let dense = hash_span(read, header.dense)?;
    sections.insert("dense".to_owned(), place(header.dense, dense));
    let fingerprint = container.fingerprint();
    let mut out = json!({
        "config": config_fields(container.config()),
        "config_hex": hex::encode(section(header.config)),
        "file": name,
        "fingerprint": {
            "Device": fingerprint.device,
            "Host": fingerprint.host,
            "VRAM": fingerprint.vram,
            "Writer": fingerprint.writer,
        },
        "header": header_fields(&header),
        "header_hex": hex::encode(&start),
        "page_extents": page_extents(&container),
        "sections": sections,
        "sha256": hash_span(read, Span::new(0, file_len))?,
        "size": file_len,
        "tensors": tensors,
        "version": header.version.number(),
    });
    out["vocab"] = vocab.map_or(Value::Null, |vocab| self::vocab(&vocab));
    Ok(out)
}

fn place(span: Span, sha256: String) -> Value {
    json!({"len": span.length, "off": span.offset, "sha256": sha256})
}

pub(crate) fn config_fields(config: &Config) -> Value {
    let mut out = Map::new();
    let mut number = |name: &str, number: Number| match number {
        Number::Int(value) => {
            out.insert(name.to_owned(), value.into());
        }
        Number::Float(value) => {
            out.insert(name.to_owned(), float(value));
            out.insert(format!("{name}_bits"), bits(value));
        }
    };
    config
        .numbers()
        .into_iter()
        .for_each(|(name, value)| number(name, value));
    let (decision, ssm) = (&config.tails.decision, config.ssm.numbers());
    let ssm: Map<_, _> = ssm
        .into_iter()
        .map(|(name, value)| match value {
            Number::Int(value) => (name.to_owned(), value.into()),
            Number::Float(value) => (name.to_owned(), float(value)),
        })
        .collect();
    let temperatures: Vec<_> = decision
        .temperatures
        .iter()
        .map(|entry| {
            json!({"Max": entry.max, "Min": entry.min, "T": float(entry.temperature), "Type": entry.question})
        })
        .collect();
    let flags: Vec<_> = Flags::NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| config.flags.0 >> bit & 1 == 1)
        .filter_map(|(_, name)| *name)
        .collect();
    let kinds: Vec<_> = config.layer_kinds.iter().map(|kind| *kind as u8).collect();
    for (name, value) in [
        ("Arch", config.arch.code().into()),
        ("CompKinds", json!(config.tails.comp_kinds)),
        ("Decision", decision.kind.into()),
        ("DecisionBlocks", decision.blocks.into()),
        ("DecisionHeadTokens", decision.head_tokens.into()),
        ("DecisionHeads", decision.heads.into()),
        ("DecisionTemps", temperatures.into()),
        ("Flags", config.flags.0.into()),
        ("LayerKinds", json!(kinds)),
        ("RopeSections", json!(config.rope_sections)),
        ("SSM", ssm.into()),
        ("arch_name", config.arch.name().into()),
        ("flag_names", json!(flags)),
    ] {
        out.insert(name.to_owned(), value);
    }
    out.into()
}

pub(crate) fn header_fields(header: &Header) -> Value {
    json!({
        "CfgLen": header.config.length,
        "CfgOff": header.config.offset,
        "Chunk": header.chunk,
        "DataOff": header.data_off,
        "DenseLen": header.dense.length,
        "DenseOff": header.dense.offset,
        "ExpDataOff": header.exp_data_off,
        "ExpPageSize": header.exp_page_size,
        "FPLen": header.fingerprint.length,
        "FPOff": header.fingerprint.offset,
        "NBlocks": header.n_blocks,
        "NExpPages": header.n_exp_pages,
        "NTensors": header.n_tensors,
        "NVisBlocks": header.n_vis_blocks,
        "PageSize": header.page_size,
        "StreamGroups": header.stream_groups,
        "TabLen": header.table.length,
        "TabOff": header.table.offset,
        "VisDataOff": header.vis_data_off,
        "VisLen": header.vision.length,
        "VisOff": header.vision.offset,
        "VisPageSize": header.vis_page_size,
        "VocLen": header.vocab.length,
        "VocOff": header.vocab.offset,
    })
}

/// Bytes in use of every text page, then of the other pages, which are given as 0.
fn page_extents(container: &Container) -> Vec<u64> {
    let header = container.header();
    let others = header.n_vis_blocks as usize + header.n_exp_pages as usize;
    let mut extents = vec![0; header.n_blocks as usize + others];
    let paged = container
        .tensors()
        .iter()
        .filter(|entry| entry.is_paged() && !entry.key.role.is_vision());
    for entry in paged {
        let extent = &mut extents[entry.key.block.unsigned_abs() as usize];
        let lens = aligned(entry.planes().unwrap_or_default());
        *extent += lens.iter().sum::<u64>();
    }
    extents
}

fn aligned(lens: PlaneLens) -> [u64; 3] {
    lens.as_array()
        .map(|length| align(length).unwrap_or(u64::MAX))
}

fn tensor<E>(
    container: &Container,
    entry: &TensorEntry,
    read: ReadSpan<'_, E>,
) -> Result<Value, DumpError<E>> {
    let paged = entry.is_expert_paged();
    let sheet_lens = entry.sheet_planes().unwrap_or_default();
    let lens = entry.planes().unwrap_or_default();
    let spans = aligned(lens);
    let sheet = Sheet {
        dtype: entry.dtype,
        k: entry.k() as usize,
        rows: entry.rows() as usize,
    };
    let mut planes_hash: [Sha256; 3] = std::array::from_fn(|_| Sha256::new());
    let (mut values_hash, mut source_hash) = (Sha256::new(), Sha256::new());
    let (mut first, mut sheets) = (Vec::new(), Vec::new());
    let mut row_values = vec![0.0; sheet.k];
    let source_len = entry
        .dtype
        .source_bytes(entry.k(), entry.rows())
        .unwrap_or(0);
    let mut source = vec![0; source_len as usize];
    for at in 0..entry.sheets() {
        let Some(places) = container.sheet(entry, at) else {
            break;
        };
        let [qs, d, sc] = [
            fetch(read, places.qs)?,
            fetch(read, places.d)?,
            fetch(read, places.sc)?,
        ];
        for (hash, bytes) in planes_hash.iter_mut().zip([&qs, &d, &sc]) {
            hash.update(bytes);
        }
        sheets.push(json!({"d": sha256(&d), "qs": sha256(&qs), "sc": sha256(&sc), "sheet": at}));
        let planes = PlaneBytes {
            qs: &qs,
            d: &d,
            sc: &sc,
        };
        for row in 0..sheet.rows {
            sheet.dequantize_row(planes, row, &mut row_values)?;
            row_values
                .iter()
                .for_each(|value| values_hash.update(value.to_le_bytes()));
            let missing = FIRST.saturating_sub(first.len());
            first.extend(row_values.iter().take(missing));
        }
        sheet.unpack(planes, &mut source)?;
        source_hash.update(&source);
    }
    let [qs, d, sc] = planes_hash.map(|hash| hex::encode(hash.finalize()));
    let values = hex::encode(values_hash.finalize());
    let mut out = json!({
        "aligned_spans": {"d": spans[1], "qs": spans[0], "sc": spans[2]},
        "always_resident": entry.is_dense(),
        "block": entry.key.block,
        "d_off": entry.d_off,
        "dequant_f32le_sha256": values,
        "dims": entry.dims,
        "expert_paged": paged,
        "first8": first.iter().map(|value| float(*value)).collect::<Vec<_>>(),
        "first8_bits": first.iter().map(|value| bits(*value)).collect::<Vec<_>>(),
        "index": entry.key.index,
        "n_elements": entry.elements(),
        "name": entry.name,
        "ndim": entry.dims.len(),
        "packed": entry.dtype.packed().is_some(),
        "planes_len": {"d": lens.d, "qs": lens.qs, "sc": lens.sc},
        "planes_sha256": {"d": d, "qs": qs, "sc": sc},
        "qs_off": entry.qs_off,
        "role": entry.key.role.code(),
        "role_name": entry.key.role.name(),
        "sc_off": entry.sc_off,
        "sheet_planes": {"d": sheet_lens.d, "qs": sheet_lens.qs, "sc": sheet_lens.sc},
        "sheets": entry.sheets(),
        "source_bytes_sha256": hex::encode(source_hash.finalize()),
        "source_type": entry.dtype.ggml().0,
        "type": entry.dtype.code(),
        "type_name": entry.dtype.name(),
        // One decoder serves both: what is unpacked is what is dequantized.
        "unpacked_equals_dequant": true,
        "unpacked_f32le_sha256": values,
    });
    if sheets.len() > 1 {
        out["sheet_sha256"] = sheets.into();
    }
    Ok(out)
}

fn vocab(vocab: &Vocab) -> Value {
    let mut counts = Map::new();
    for kind in &vocab.kinds {
        let count = counts.entry((*kind as u8).to_string()).or_insert(0.into());
        *count = (count.as_u64().unwrap_or(0) + 1).into();
    }
    let (mut tokens, mut merges, mut scores) = (Sha256::new(), Sha256::new(), Sha256::new());
    for token in &vocab.tokens {
        tokens.update(token);
        tokens.update([0]);
    }
    for (left, right) in &vocab.merges {
        merges.update(left);
        merges.update([0]);
        merges.update(right);
        merges.update([1]);
    }
    vocab
        .scores
        .iter()
        .for_each(|score| scores.update(score.to_le_bytes()));
    let hash = |hash: Sha256| hex::encode(hash.finalize());
    let added: Vec<_> = vocab
        .added
        .iter()
        .map(|token| {
            json!({
                "Content": token.content,
                "ID": token.id,
                "LStrip": token.lstrip,
                "Normalized": token.normalized,
                "RStrip": token.rstrip,
                "SingleWord": token.single_word,
                "Special": token.special,
            })
        })
        .collect();
    let templates: Vec<_> = vocab
        .templates
        .iter()
        .map(|template| {
            let body = template.body.as_bytes();
            json!({"len": body.len(), "name": template.name, "sha256": sha256(body)})
        })
        .collect();
    json!({
        "AddBOS": vocab.add_bos,
        "AddEOS": vocab.add_eos,
        "AddSpacePrefix": vocab.add_space_prefix,
        "BOS": vocab.special.bos,
        "ByteFallback": vocab.byte_fallback,
        "EOS": vocab.special.eos,
        "IgnoreMerges": vocab.ignore_merges,
        "Mask": vocab.special.mask,
        "Pad": vocab.special.pad,
        "Sep": vocab.special.sep,
        "Stop": vocab.stop,
        "Unk": vocab.special.unk,
        "added": added,
        "kind": vocab.kind as u8,
        "kind_counts": counts,
        "kind_name": vocab.kind.name(),
        "kinds": vocab.kinds.iter().map(|kind| *kind as u8).collect::<Vec<_>>(),
        "merges_head": vocab.merges.iter().take(FIRST).collect::<Vec<_>>(),
        "merges_sha256": hash(merges),
        "n_merges": vocab.merges.len(),
        "n_tokens": vocab.tokens.len(),
        "pre": vocab.pre_ops.iter().map(pre_op).collect::<Vec<_>>(),
        "pre_name": vocab.pre_name,
        "scores": scores_shown(&vocab.scores, hash(scores)),
        "templates": templates,
        "tokens": vocab.tokens,
        "tokens_sha256": hash(tokens),
    })
}

fn scores_shown(scores: &[f32], sha256: String) -> Value {
    let mut out = json!({"count": scores.len(), "sha256_f32le": sha256});
    if !scores.is_empty() {
        let shown = |scores: &[f32]| Value::Array(scores.iter().copied().map(float).collect());
        out["head"] = shown(&scores[..FIRST.min(scores.len())]);
        out["tail"] = shown(&scores[scores.len().saturating_sub(FIRST)..]);
    }
    out
}

fn pre_op(op: &PreOp) -> Value {
    json!({
        "AddPrefixSpace": op.add_prefix_space,
        "Behavior": op.behavior,
        "CaseFold": op.case_fold,
        "CaseRuns": op.case_runs,
        "Contractions": op.contractions,
        "DigitGroup": op.digit_group,
        "HanRuns": op.han_runs,
        "Individual": op.individual,
        "Kind": op.kind as u8,
        "LetterMarks": op.letter_marks,
        "PunctNoNewline": op.punct_no_newline,
        "PunctSlash": op.punct_slash,
        "SuffixContract": op.suffix_contract,
        "UseRegex": op.use_regex,
    })
}

/// The shortest decimal that reads back as the same f32; null when there is none.
fn float(value: f32) -> Value {
    let whole = value as i64;
    if value.is_finite() && whole as f32 == value && !(value == 0.0 && value.is_sign_negative()) {
        return whole.into();
    }
    // As many digits as the shortest form has; of two forms equally near, the even one.
    let shortest = format!("{value:e}");
    let digits = shortest
        .bytes()
        .take_while(|byte| *byte != b'e')
        .filter(u8::is_ascii_digit);
    let precision = digits.count().saturating_sub(1);
    let even = format!("{:.precision$e}", f64::from(value));
    let text = if even.parse() == Ok(value) {
        even
    } else {
        shortest
    };
    let number = text.parse().ok().and_then(JsonNumber::from_f64);
    number.map_or(Value::Null, Value::Number)
}

fn bits(value: f32) -> Value {
    format!("{:#010x}", value.to_bits()).into()
}

fn fetch<E>(read: ReadSpan<'_, E>, span: Span) -> Result<Vec<u8>, DumpError<E>> {
    let mut bytes = vec![0; span.length as usize];
    read(span, &mut bytes).map_err(DumpError::Read)?;
    Ok(bytes)
}

fn hash_span<E>(read: ReadSpan<'_, E>, span: Span) -> Result<String, DumpError<E>> {
    let mut hash = Sha256::new();
    for offset in (0..span.length).step_by(PIECE as usize) {
        let length = PIECE.min(span.length - offset);
        hash.update(fetch(read, Span::new(span.offset + offset, length))?);
    }
    Ok(hex::encode(hash.finalize()))
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Values and merges that are shown.
const FIRST: usize = 8;
/// Bytes hashed at a time.
const PIECE: u64 = 1 << 20;
