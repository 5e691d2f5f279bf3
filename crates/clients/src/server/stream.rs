//! What requests and answers go through.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{is_refusal, secured};

/// A connection, secured or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What the server said when it did not admit us. A server looks at our certificate only after we have begun to send, so
/// this comes late; and it is kept here because protocols pass on the words of such an error, not the error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alert(Arc<OnceLock<rustls::Error>>);

impl Alert {
    pub(crate) fn refusal(&self) -> Option<rustls::Error> {
        self.0.get().cloned()
    }

    fn notice(&self, error: &io::Error) {
        if let Some(cause) = secured(error).filter(|cause| is_refusal(cause)) {
            // The first one is the cause of all others.
            let _ = self.0.set(cause.clone());
        }
    }
}

/// A secured stream whose alerts are kept.
pub(super) struct Noticing<S> {
    pub(super) stream: S,
    pub(super) alert: Alert,
}

impl<S> Noticing<S> {
    fn noticed<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            self.alert.notice(error);
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.noticed(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noticing<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.noticed(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.noticed(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
