//! What end-to-end tests say in one sentence.
