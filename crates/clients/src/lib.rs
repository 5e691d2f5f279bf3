//! Clients of what Messina talks to besides Kubernetes, one module each.

pub mod scylla;
