//! Every decision of Messina, as pure functions from what is known to what is to be.
//!
//! There is no I/O here, no clock and no chance: times, random texts and generated keys come in as values. So a decision
//! can be tried out with nothing but its inputs, and the same inputs always give the same answer.
//!
//! Each kind has a module with the same way through it. The object as it was read is turned into a value that can be
//! relied on, or into a list of faults that say what is wrong and what to do. That value and everything else that was
//! observed go into `plan`, which says which objects are to be there, what is to be left alone and what is being waited
//! for. A report of how things stand is made of the same observation and that plan.

pub mod datacenter;
pub mod defaulting;
pub mod etcd_task;
pub mod node;
pub mod preview;
mod quantity;
mod version;
mod words;
