//! What requests and answers go through.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{is_refusal, tls_error};

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
        if let Some(cause) = tls_error(error).filter(|cause| is_refusal(cause)) {
            // The first one is the cause of all others.
            let _ = self.0.set(cause.clone());
        }
    }
}

/// A secured stream whose alerts are kept.
pub(super) struct AlertRecorder<S> {
    stream: S,
    alert: Alert,
    /// Why nothing can be written any more.
    broken: Option<io::Error>,
}

impl<S> AlertRecorder<S> {
    pub(super) fn new(stream: S, alert: Alert) -> Self {
        Self { stream, alert, broken: None }
    }
}

impl<S: AsyncRead + Unpin> AlertRecorder<S> {
    /// Passes on how a write went. A server that hangs up after it has said why makes writing fail before that was read,
    /// so it is heard out first.
    fn written<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(Err(error)) => self.hear_out(context, error).map(Err),
            other => other,
        }
    }

    fn hear_out(&mut self, context: &mut Context<'_>, error: io::Error) -> Poll<io::Error> {
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
                    self.alert.notice(&reason);
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
            self.alert.notice(error);
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
        self.written(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = match self.broken.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.stream).poll_flush(context),
        };
        self.written(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
