//! Records of numbers in file order.

use codec::{DecodeError, Reader, Writer};

/// A number of the config record, for printing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An unsigned integer.
    Int(u32),
    /// A float.
    Float(f32),
}

pub(crate) trait Field: Copy {
    fn read(reader: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError>;
    fn write(self, out: &mut Writer);
    fn number(self) -> Number;
    /// Compared by bits, so that a negative zero is kept.
    fn is_zero(&self) -> bool;
}

impl Field for u32 {
    fn read(reader: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        reader.u32(name)
    }
    fn write(self, out: &mut Writer) {
        out.u32(self);
    }
    fn number(self) -> Number {
        Number::Int(self)
    }
    fn is_zero(&self) -> bool {
        *self == 0
    }
}

impl Field for f32 {
    fn read(reader: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        reader.f32(name)
    }
    fn write(self, out: &mut Writer) {
        out.f32(self);
    }
    fn number(self) -> Number {
        Number::Float(self)
    }
    fn is_zero(&self) -> bool {
        self.to_bits() == 0
    }
}

/// A record of numbers, in file order.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $kind:ty = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Default)]
        pub struct $name {
            $($(#[$fdoc])* #[doc = concat!("`", $label, "` in the format.")] pub $field: $kind,)*
        }

        impl $name {
            pub(crate) fn read(
                reader: &mut codec::Reader<'_>,
            ) -> Result<Self, codec::DecodeError> {
                Ok(Self { $($field: $crate::record::Field::read(reader, $label)?,)* })
            }

            pub(crate) fn write(&self, out: &mut codec::Writer) {
                $($crate::record::Field::write(self.$field, out);)*
            }

            /// The format's names of the fields, with their values.
            #[must_use]
            pub fn numbers(&self) -> Vec<(&'static str, $crate::record::Number)> {
                vec![$(($label, $crate::record::Field::number(self.$field)),)*]
            }

            #[allow(dead_code, reason = "only the optional tails are left out when zero")]
            pub(crate) fn is_zero(&self) -> bool {
                true $(&& $crate::record::Field::is_zero(&self.$field))*
            }
        }
    };
}

pub(crate) use record;
