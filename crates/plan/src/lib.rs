//! Every decision of Messina: what is observed goes in, what is to be done comes out. No I/O, no clock, no randomness.

pub mod node;
