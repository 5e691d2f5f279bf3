//! What the program `messina` does, one module for each subcommand.

pub mod controllers;
pub mod crds;
pub mod operator;
