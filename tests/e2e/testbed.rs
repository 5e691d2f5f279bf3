//! The testbed itself.
