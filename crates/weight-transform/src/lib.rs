//! Keyed transforms per architecture: tensor name in, recipe out.
