//! Tensor-name patterns: `{}` stands for an index, a leading `@` for the architecture's prefix.

use std::ops::Range;

/// The indices that a pattern's `{}` stood for, and where in the name they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Captures<'a> {
    name: &'a str,
    found: Vec<(u32, Range<usize>)>,
}

impl<'a> Captures<'a> {
    /// The `k`-th index of the pattern.
    pub(crate) fn index(&self, k: usize) -> u32 {
        self.found[k].0
    }

    /// The name before and after its `k`-th index.
    pub(crate) fn around(&self, k: usize) -> (&'a str, &'a str) {
        let range = &self.found[k].1;
        (&self.name[..range.start], &self.name[range.end..])
    }
}

/// Matches a whole name. Indices are written in decimal without leading zeros.
pub(crate) fn matches<'a>(pattern: &str, prefix: &str, name: &'a str) -> Option<Captures<'a>> {
    let (pattern, mut at) = match pattern.strip_prefix('@') {
        Some(rest) => {
            name.strip_prefix(prefix)?;
            (rest, prefix.len())
        }
        None => (pattern, 0),
    };
    let mut found = Vec::new();
    let mut pieces = pattern.split("{}");
    let first = pieces.next().unwrap_or_default();
    at += name[at..].strip_prefix(first).map(|_| first.len())?;
    for piece in pieces {
        let digits = name[at..].bytes().take_while(u8::is_ascii_digit).count();
        let text = &name[at..at + digits];
        if digits == 0 || (digits > 1 && text.starts_with('0')) {
            return None;
        }
        found.push((text.parse().ok()?, at..at + digits));
        at += digits;
        at += name[at..].strip_prefix(piece).map(|_| piece.len())?;
    }
    (at == name.len()).then_some(Captures { name, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_with_canonical_indices() {
        let pattern = "@layers.{}.mlp.experts.{}.up_proj.weight";
        let name = "model.layers.12.mlp.experts.3.up_proj.weight";
        let captures = matches(pattern, "model.", name).unwrap();
        assert_eq!((captures.index(0), captures.index(1)), (12, 3));
        assert_eq!(
            captures.around(1),
            ("model.layers.12.mlp.experts.", ".up_proj.weight")
        );
        for other in [
            "layers.12.mlp.experts.3.up_proj.weight",
            "model.layers.012.mlp.experts.3.up_proj.weight",
            "model.layers.12.mlp.experts..up_proj.weight",
            "model.layers.12.mlp.experts.3.up_proj.weight_scale",
            "model.layers.99999999999.mlp.experts.3.up_proj.weight",
        ] {
            assert_eq!(matches(pattern, "model.", other), None, "{other}");
        }
        assert!(matches("lm_head.weight", "model.", "lm_head.weight").is_some());
    }
}
