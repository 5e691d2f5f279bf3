//! Panics are faults of this program. One of them ends what it happened in, and nothing else.

use std::{any::Any, future::Future, panic::AssertUnwindSafe};

use futures::FutureExt;

/// What comes of `work`, or the text of its panic. Whatever `work` changes must be usable in whichever state it is left.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| text(panic.as_ref()))
}

/// The text of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

#[cfg(test)]
#[expect(clippy::panic, reason = "it is what is tested")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_with_its_text() {
        assert_eq!(catch_panic(async { 1 }).await, Ok(1));
        assert_eq!(catch_panic(async { panic!("it broke") }).await, Err::<(), _>("it broke".to_owned()));
        assert_eq!(catch_panic(async { panic!("{} broke", 2) }).await, Err::<(), _>("2 broke".to_owned()));
    }
}
