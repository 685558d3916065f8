//! Chunk, stream groups, plane lengths and code tables equal to the vectors.

mod fixtures;

use jlm::{Arch, DType, Role, TensorEntry, TensorKey, chunk_size, stream_groups};

#[test]
fn every_layout_vector() {
    let Some(vectors) = fixtures::json("vectors/layout-vectors.json") else {
        return;
    };
    for case in vectors["cases"].as_array().unwrap() {
        let entries: Vec<_> = case["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| TensorEntry {
                key: TensorKey {
                    role: Role::from_code(entry["role"].as_u64().unwrap() as u16).unwrap(),
                    block: entry["block"].as_i64().unwrap() as i32,
                    index: -1,
                },
                dtype: DType::from_code(entry["type"].as_u64().unwrap() as u8).unwrap(),
                dims: entry["dims"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|d| d.as_u64().unwrap())
                    .collect(),
                qs_off: 0,
                d_off: 0,
                sc_off: 0,
                name: String::new(),
            })
            .collect();
        assert_eq!(case["chunk"], chunk_size(&entries), "{}", case["name"]);
        for groups in case["stream_groups"].as_array().unwrap() {
            let used = groups["used"].as_u64().unwrap() as u32;
            let name = &case["name"];
            assert_eq!(
                groups["groups"],
                stream_groups(&entries, used),
                "{name}: {used} used"
            );
        }
    }
    for row in vectors["packed_words"].as_array().unwrap() {
        let number = |field: &str| row[field].as_u64().unwrap();
        let dtype = DType::from_code(number("code") as u8).unwrap();
        let lens = dtype.planes(number("k"), number("rows"));
        if row.get("error").is_some() {
            assert_eq!(lens, None, "{row}");
            continue;
        }
        let expected = ["qs_words", "d_words", "sc_words"].map(|field| 4 * number(field));
        assert_eq!(lens.unwrap().as_array(), expected, "{row}");
    }
}

#[test]
fn the_tables_are_the_published_ones() {
    let Some(tables) = fixtures::json("vectors/tables.json") else {
        return;
    };
    let code = |row: &serde_json::Value| row["code"].as_u64().unwrap() as u16;
    for row in tables["arch"].as_array().unwrap() {
        assert_eq!(row["name"], Arch::from_code(code(row)).unwrap().name());
    }
    for row in tables["roles"].as_array().unwrap() {
        let role = Role::from_code(code(row)).unwrap();
        assert_eq!(row["name"], role.name());
        assert_eq!(row["expanded"], role.is_expanded(), "{}", role.name());
        assert_eq!(row["vision"], role.is_vision(), "{}", role.name());
        assert_eq!(row["expert_bank"], role.is_expert_bank(), "{}", role.name());
    }
    for row in tables["types"].as_array().unwrap() {
        let dtype = DType::from_code(code(row) as u8).unwrap();
        assert_eq!(row["name"], dtype.name());
        assert_eq!(row["ggml"], dtype.ggml().0);
        assert_eq!(row["ggml_code"], dtype.ggml().1);
    }
}
