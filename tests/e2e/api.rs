//! The custom resources on the real API server.
