//! Traces of the running operator.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use messina_e2e::{in_a_namespace, light_kubeconfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
};

use super::{apply, await_created, await_repair, condition, datacenter, operator_process::Operator};

/// The termination grace period of the operator's Deployment.
const GRACE: Duration = Duration::from_secs(15);

/// The received requests: the first line of each, and its body.
type Delivered = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A server that accepts all HTTP requests.
async fn collector() -> (String, Delivered) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let delivered = Delivered::default();
    let shelf = Arc::clone(&delivered);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let shelf = Arc::clone(&shelf);
            tokio::spawn(async move {
                let mut read = Vec::new();
                while stream.read_buf(&mut read).await.is_ok_and(|length| length > 0) {
                    let Some(head) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                    let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
                    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                    let end = head + 4 + length.unwrap_or(0_usize);
                    if read.len() >= end {
                        let line = text.lines().next().unwrap_or_default().to_owned();
                        shelf.lock().unwrap().push((line, read[head + 4..end].to_vec()));
                        read.drain(..end);
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    }
                }
            });
        }
    });
    (address, delivered)
}

fn holds_text(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn each_reconcile_is_a_trace_and_the_last_are_sent_at_shutdown() {
    in_a_namespace("days-traces", async |client, namespace| {
        let (endpoint, delivered) = collector().await;
        apply(client, namespace, &datacenter("dc")).await;
        // Traces are complete whatever the log level.
        let more = ["--otlp-endpoint", &endpoint, "--log-level=info"];
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &more);
        await_created(client, namespace, "dc").await;
        // The status is written last in a trace.
        condition(client, namespace, "dc", "StatefulSetControllerProgressing", |one| one.status == "True").await;
        let (status, took) = operator.stop().await;
        assert!(status.success(), "{status}");
        eprintln!("stopped in {took:?}");
        let delivered = delivered.lock().unwrap().clone();
        assert!(
            !delivered.is_empty() && delivered.iter().all(|(line, _)| line == "post /v1/traces http/1.1"),
            "{delivered:?}"
        );
        let all: Vec<u8> = delivered.into_iter().flat_map(|(_, body)| body).collect();
        let object = format!("{namespace}/dc");
        for text in ["reconcile", "observe", "plan", "apply", "report", "request", "messina", "statefulsets", &object] {
            assert!(holds_text(&all, text), "{text} should be in the traces");
        }
    })
    .await;
}

#[tokio::test]
async fn unavailable_collector_is_reported_once_and_blocks_nothing() {
    in_a_namespace("days-traces", async |client, namespace| {
        // A bound port, so that no other program gets it, on which no program listens.
        let taken = TcpSocket::new_v4().unwrap();
        taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let nowhere = taken.local_addr().unwrap();
        apply(client, namespace, &datacenter("dc")).await;
        let endpoint = format!("--otlp-endpoint=http://{nowhere}");
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[&endpoint]);
        await_created(client, namespace, "dc").await;
        operator.await_log(0, "cannot export traces").await;
        await_repair(client, namespace, "dc").await;
        let (status, took) = operator.stop().await;
        assert!(status.success() && took < GRACE, "{status} after {took:?}");
        let warnings = operator.warnings(0);
        assert_eq!(warnings.iter().filter(|one| one.contains("traces")).count(), 1, "{warnings:?}");
    })
    .await;
}
