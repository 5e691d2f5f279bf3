//! Containment of panics, which are bugs of the operator: a panic ends the current reconcile or task, and nothing else.

use std::{any::Any, future::Future, panic::AssertUnwindSafe};

use futures::FutureExt;

/// Returns the result of `work`, or the text of its panic. Whatever `work` changes must be usable in any state it is
/// left in.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| text(panic.as_ref()))
}

/// The text of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
#[expect(clippy::panic, reason = "it is what is tested")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_is_an_error_with_its_text() {
        assert_eq!(catch_panic(async { 1 }).await, Ok(1));
        assert_eq!(catch_panic(async { panic!("it broke") }).await, Err::<(), _>("it broke".to_owned()));
        assert_eq!(catch_panic(async { panic!("{} broke", 2) }).await, Err::<(), _>("2 broke".to_owned()));
    }
}
