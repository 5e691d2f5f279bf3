//! Streams of connections, and the recording of TLS alerts.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{is_refusal, tls_error};

/// A stream with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The TLS alert with which the server rejected the client certificate. A server verifies it only after the client has
/// begun to send, so the alert arrives late. It is recorded here because HTTP libraries pass on the text of such an
/// error, not the error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alert(Arc<OnceLock<rustls::Error>>);

impl Alert {
    pub(crate) fn refusal(&self) -> Option<rustls::Error> {
        self.0.get().cloned()
    }

    fn record(&self, error: &io::Error) {
        if let Some(cause) = tls_error(error).filter(|cause| is_refusal(cause)) {
            // The first alert is the cause of all later errors.
            let _ = self.0.set(cause.clone());
        }
    }
}

/// A TLS stream that records alerts.
pub(super) struct AlertRecorder<S> {
    stream: S,
    alert: Alert,
    /// The error that ended writing.
    broken: Option<io::Error>,
}

impl<S> AlertRecorder<S> {
    pub(super) fn new(stream: S, alert: Alert) -> Self {
        Self { stream, alert, broken: None }
    }
}

impl<S: AsyncRead + Unpin> AlertRecorder<S> {
    /// Returns the result of a write. If a server sends an alert and closes the connection, the write fails before the
    /// alert is read, so the alert is read first.
    fn after_write<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(Err(error)) => self.read_alert(context, error).map(Err),
            other => other,
        }
    }

    fn read_alert(&mut self, context: &mut Context<'_>, error: io::Error) -> Poll<io::Error> {
        let mut bytes = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => {
                    self.broken = Some(error);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(Ok(())) => return Poll::Ready(error),
                Poll::Ready(Err(reason)) => {
                    self.alert.record(&reason);
                    return Poll::Ready(error);
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AlertRecorder<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &polled {
            self.alert.record(error);
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AlertRecorder<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let polled = match self.broken.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.stream).poll_write(context, buffer),
        };
        self.after_write(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = match self.broken.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.stream).poll_flush(context),
        };
        self.after_write(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
