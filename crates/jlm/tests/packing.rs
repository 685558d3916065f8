//! Packing and quantization equal to the vectors and to the containers' dumps.

#![allow(clippy::unwrap_used, reason = "test support")]

mod fixtures;

use jlm::{Container, DType, PlaneBytes, PlaneBytesMut, Sheet, half_of, quantize_q8};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn pack(sheet: Sheet, source: &[u8]) -> Result<[Vec<u8>; 3], jlm::JlmError> {
    let lens = sheet
        .dtype
        .planes(sheet.k as u64, sheet.rows as u64)
        .unwrap();
    // Padding that is not zero beforehand must not stay.
    let mut planes = lens.as_array().map(|len| vec![0xee; len as usize]);
    let [qs, d, sc] = &mut planes;
    sheet.pack(source, PlaneBytesMut { qs, d, sc })?;
    Ok(planes)
}

fn view(planes: &[Vec<u8>; 3]) -> PlaneBytes<'_> {
    let [qs, d, sc] = planes;
    PlaneBytes { qs, d, sc }
}

fn dequantize(sheet: Sheet, planes: PlaneBytes<'_>) -> Vec<u8> {
    let mut values = vec![0.0; sheet.k];
    (0..sheet.rows)
        .flat_map(|row| {
            sheet.dequantize_row(planes, row, &mut values).unwrap();
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_pack_vector() {
    let Some(vectors) = fixtures::json("vectors/pack-vectors.json") else {
        return;
    };
    let vectors = vectors.as_array().unwrap();
    assert_eq!(vectors.len(), 42);
    for (at, vector) in vectors.iter().enumerate() {
        let number = |field: &str| vector[field].as_u64().unwrap() as usize;
        let dtype = DType::from_code(number("jlm_code") as u8).unwrap();
        let sheet = Sheet {
            dtype,
            k: number("k"),
            rows: number("rows"),
        };
        let name = format!("vector {at}, {} {}x{}", dtype.name(), sheet.k, sheet.rows);
        let source = bytes(&vector["src_hex"]);
        if vector.get("error").is_some() {
            assert!(pack(sheet, &source).is_err(), "{name}");
            continue;
        }
        let planes = pack(sheet, &source).unwrap_or_else(|e| panic!("{name}: {e}"));
        // An all-zero MXFP4 block of exponent 0 is stored with scale 0, on purpose.
        let zero_block = dtype == DType::Mx4 && source[0] == 0;
        assert_eq!(planes[0], bytes(&vector["qs_hex"]), "{name}: qs");
        if !zero_block {
            assert_eq!(planes[1], bytes(&vector["d_hex"]), "{name}: d");
        }
        assert_eq!(planes[2], bytes(&vector["sc_hex"]), "{name}: sc");
        let values = bytes(&vector["values_f32le_hex"]);
        assert_eq!(dequantize(sheet, view(&planes)), values, "{name}: values");
        let mut back = vec![0; source.len()];
        sheet.unpack(view(&planes), &mut back).unwrap();
        if !zero_block {
            assert_eq!(back, source, "{name}: unpacked");
        }
    }
}

#[test]
fn an_exponent_byte_of_255_reads_as_scale_zero() {
    let sheet = Sheet {
        dtype: DType::Mx4,
        k: 32,
        rows: 1,
    };
    let planes = PlaneBytes {
        qs: &[0x80; 16],
        d: &[0xff, 0, 0, 0],
        sc: &[],
    };
    assert_eq!(dequantize(sheet, planes), [0; 128]);
}

#[test]
fn every_plane_of_every_container_dequantizes_to_the_dumps_values() {
    for (name, file) in fixtures::containers() {
        let container = Container::decode(&file, file.len() as u64).unwrap();
        let dump = fixtures::json(&format!("dumps/{}", name.replace(".jlm", ".json"))).unwrap();
        for (entry, expected) in container
            .tensors()
            .iter()
            .zip(dump["tensors"].as_array().unwrap())
        {
            let sheet = Sheet {
                dtype: entry.dtype,
                k: entry.k() as usize,
                rows: entry.rows() as usize,
            };
            let (mut values, mut source) = (Sha256::new(), Sha256::new());
            let packed = entry.dtype.packed().is_some();
            for at in 0..entry.sheets() {
                let [qs, d, sc] =
                    container.sheet(entry, at).unwrap().as_array().map(|span| {
                        &file[span.offset as usize..(span.offset + span.length) as usize]
                    });
                let planes = PlaneBytes { qs, d, sc };
                values.update(dequantize(sheet, planes));
                let bytes = entry.dtype.source_bytes(entry.k(), entry.rows()).unwrap();
                let mut blocks = vec![0; bytes as usize];
                sheet.unpack(planes, &mut blocks).unwrap();
                if packed {
                    let again = pack(sheet, &blocks).unwrap();
                    assert!(
                        again == [qs, d, sc].map(<[u8]>::to_vec),
                        "{name}: {}",
                        entry.name
                    );
                }
                source.update(blocks);
            }
            let hash = |hash: Sha256| hex::encode(hash.finalize());
            assert_eq!(
                expected["dequant_f32le_sha256"],
                hash(values),
                "{name}: {}",
                entry.name
            );
            assert_eq!(
                expected["source_bytes_sha256"],
                hash(source),
                "{name}: {}",
                entry.name
            );
        }
    }
}

#[test]
fn quantization_equals_the_vectors() {
    let Some(vectors) = fixtures::json("vectors/q8-vectors.json") else {
        return;
    };
    for row in vectors["rows"].as_array().unwrap() {
        let mut values = vec![0.0; bytes(&row["f32le_hex"]).len() / 4];
        jlm::floats(DType::F32, &bytes(&row["f32le_hex"]), &mut values);
        let mut blocks = vec![0; values.len() / 32 * 34];
        quantize_q8(&values, &mut blocks).unwrap();
        assert_eq!(blocks, bytes(&row["q8_0_hex"]), "{}", row["name"]);
    }
    for half in vectors["halves"].as_array().unwrap() {
        let number = |field: &str| half[field].as_u64().unwrap();
        let value = f32::from_bits(number("f32_bits") as u32);
        assert_eq!(u64::from(half_of(value)), number("f32ToF16"), "{value:e}");
    }
    assert!(quantize_q8(&[f32::NAN; 32], &mut [0; 34]).is_err());
}
