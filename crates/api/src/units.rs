use proto::v1;

use crate::fields::InvalidField;

/// A contiguous, non-empty range of units of one region of a sealed container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitRange {
    /// Region id, 1 to 6.
    pub region: u8,
    /// First unit.
    pub start: u64,
    /// One past the last unit.
    pub end: u64,
}

impl UnitRange {
    /// Reads a range.
    pub fn from_proto(range: &v1::UnitRange) -> Result<Self, InvalidField> {
        let region = u8::try_from(range.region)
            .ok()
            .filter(|region| (1..=6).contains(region))
            .ok_or_else(|| InvalidField::new("units.region", "expected 1 to 6"))?;
        if range.start >= range.end {
            return Err(InvalidField::new("units.end", "expected more than start"));
        }
        Ok(Self {
            region,
            start: range.start,
            end: range.end,
        })
    }

    /// Reads ranges: at most [`UnitRange::MAX`], together at most [`UnitRange::MAX_UNITS`] units.
    pub fn from_protos(ranges: &[v1::UnitRange]) -> Result<Vec<Self>, InvalidField> {
        if ranges.len() > Self::MAX {
            return Err(InvalidField::new("units", "more than 256 ranges"));
        }
        let ranges: Vec<Self> = ranges
            .iter()
            .map(Self::from_proto)
            .collect::<Result<_, _>>()?;
        let total = ranges.iter().try_fold(0u64, |total, range| {
            total.checked_add(range.end - range.start)
        });
        match total {
            Some(total) if total <= Self::MAX_UNITS => Ok(ranges),
            _ => Err(InvalidField::new("units", "more than 1048576 units")),
        }
    }

    /// The message.
    #[must_use]
    pub fn to_proto(self) -> v1::UnitRange {
        v1::UnitRange {
            region: self.region.into(),
            start: self.start,
            end: self.end,
        }
    }

    /// Most ranges in a message.
    pub const MAX: usize = 256;
    /// Most units in a message.
    pub const MAX_UNITS: u64 = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let range = |region, start, end| v1::UnitRange { region, start, end };
        let good = UnitRange::from_proto(&range(4, 0, 8)).unwrap();
        assert_eq!(good.to_proto(), range(4, 0, 8));
        for bad in [
            range(0, 0, 1),
            range(7, 0, 1),
            range(300, 0, 1),
            range(1, 2, 2),
        ] {
            assert!(UnitRange::from_proto(&bad).is_err(), "{bad:?}");
        }
        let too_many = vec![range(1, 0, 1); 257];
        assert!(UnitRange::from_protos(&too_many).is_err());
        let too_large = [range(1, 0, u64::MAX), range(2, 0, u64::MAX)];
        assert!(UnitRange::from_protos(&too_large).is_err());
    }
}
