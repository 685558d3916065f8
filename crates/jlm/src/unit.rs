//! Regions and units: the pieces that are read, sealed and granted as one.

use std::fmt;

/// A part of a container that is encrypted in its sealed form (spec: sealed container).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Region {
    /// The vocab section: one unit.
    Vocab = 1,
    /// The vision section: one unit.
    VisionConfig = 2,
    /// The dense region: one unit.
    Dense = 3,
    /// Text pages: one unit a page.
    Text = 4,
    /// Vision pages: one unit a page.
    Vision = 5,
    /// Expert pages: one unit a mixture block, covering all its experts' pages.
    Experts = 6,
}

impl Region {
    /// Every region, by id.
    pub const ALL: [Self; 6] = [
        Self::Vocab,
        Self::VisionConfig,
        Self::Dense,
        Self::Text,
        Self::Vision,
        Self::Experts,
    ];

    /// The region with this id.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id).checked_sub(1)?).copied()
    }

    /// The id.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The region's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vocab => "vocab",
            Self::VisionConfig => "vision config",
            Self::Dense => "dense",
            Self::Text => "text pages",
            Self::Vision => "vision pages",
            Self::Experts => "expert pages",
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One unit: a region and an index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId {
    /// The region.
    pub region: Region,
    /// Index in the region: 0 for single-unit regions, the page for page arrays, the ordinal
    /// among mixture blocks for experts.
    pub index: u64,
}

impl UnitId {
    /// A unit.
    #[must_use]
    pub const fn new(region: Region, index: u64) -> Self {
        Self { region, index }
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit {}", self.region, self.index)
    }
}

/// Consecutive units `first..end` of one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitRange {
    /// The region.
    pub region: Region,
    /// First unit.
    pub first: u64,
    /// One past the last unit.
    pub end: u64,
}

impl UnitRange {
    /// A range; `None` when it is empty.
    #[must_use]
    pub const fn new(region: Region, first: u64, end: u64) -> Option<Self> {
        if first < end {
            Some(Self { region, first, end })
        } else {
            None
        }
    }

    /// Whether `unit` is in the range.
    #[must_use]
    pub fn contains(&self, unit: UnitId) -> bool {
        self.region == unit.region && (self.first..self.end).contains(&unit.index)
    }

    /// The units, in order.
    pub fn units(self) -> impl Iterator<Item = UnitId> {
        (self.first..self.end).map(move |index| UnitId::new(self.region, index))
    }
}
