//! Kubernetes' official programs: downloads the server archive of a pinned version and unpacks what a cluster needs.
//!
//! Nothing is unpacked before the SHA-512 of the complete archive is the pinned one. Every [`ReleaseError`] has the
//! same consequence: [`crate::tools`] builds the programs instead.

use std::{
    error::Error as StdError,
    fmt,
    fs::File,
    io::{self, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{
    Request, Response, StatusCode, Uri,
    header::{CONTENT_LENGTH, HOST, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha512};
use tokio::{net::TcpStream, time::timeout};
use tower::ServiceExt;

use crate::{
    cache,
    error::{Doing, Error, Result},
    progress::Step,
};

/// The version of the official programs: the newest 1.36 whose sums were published when they were pinned. It may differ
/// from [`crate::tools::KUBERNETES`], the version that is built from the module registry.
pub const VERSION: &str = "v1.36.4";

/// `kubernetes-server-linux-ARCHITECTURE.tar.gz`: the architecture as Rust and as Kubernetes name it, and the SHA-512
/// of the archive from `CHANGELOG/CHANGELOG-1.36.md` of Kubernetes.
const ARCHIVES: [(&str, &str, &str); 2] = [
    (
        "x86_64",
        "amd64",
        "8f6e609a6aa2d33e87f321ab7528c590749d7c190724dfcf4b0b754b4dba140b7dc503b83ec4658fe37b190f2bdda730db79d14af54a146e34cd428de38bff3c",
    ),
    (
        "aarch64",
        "arm64",
        "5551e99b78f049668215e2a3f48901cfa170313a03255d45bd801c8d3d00a19c89d6e17858d9f9bbbe4017772cb97b3abd00a10683e97959bda8f972fd8b3bde",
    ),
];

/// The release site of Kubernetes.
const SITE: &str = "https://dl.k8s.io";

/// Names another release site, such as a mirror. Empty: the programs are always built.
pub const SITE_VARIABLE: &str = "MESSINA_KUBERNETES_RELEASES";

/// How many redirects are followed; the release site answers with one, to a content delivery network.
const REDIRECTS: usize = 5;

/// The name of the archive while it is in the folder of the programs.
const ARCHIVE_FILE: &str = "archive.tar.gz";

/// Why the official programs cannot be used. The message does not say what the testbed does next.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// No connection: the name, the address, the port or the certificate.
    #[error("{url} cannot be reached ({cause})")]
    Unreachable {
        /// The URL of the request.
        url: String,
        /// What the system or the TLS library reports.
        cause: String,
    },
    /// The server stopped sending.
    #[error("{url} sent nothing for {:.1} s", waited.as_secs_f64())]
    Stalled {
        /// The URL of the request.
        url: String,
        /// The time waited.
        waited: Duration,
    },
    /// The download takes longer than a build.
    #[error("{url} was not complete after {:.0} s", waited.as_secs_f64())]
    Slow {
        /// The URL of the request.
        url: String,
        /// The time waited.
        waited: Duration,
    },
    /// The server sent no file, but an HTTP error.
    #[error("{url} was answered with {status}")]
    Status {
        /// The URL of the request.
        url: String,
        /// The status.
        status: StatusCode,
    },
    /// A redirect too many, or one to something that is no HTTP URL.
    #[error("{url} redirects to {location:?}, which is not followed (only http and https, at most {REDIRECTS} times)")]
    Redirect {
        /// The URL of the request.
        url: String,
        /// Where the server points to.
        location: String,
    },
    /// The connection ended before the file did.
    #[error(
        "{url} ended after {bytes} of {} bytes ({cause}); {sums}; the incomplete file was deleted",
        length.map_or("?".into(), |length| length.to_string())
    )]
    Incomplete {
        /// The URL of the request.
        url: String,
        /// How many bytes were received.
        bytes: u64,
        /// How many bytes were announced.
        length: Option<u64>,
        /// How the connection ended.
        cause: String,
        /// The expected and the actual checksum.
        sums: Box<Sums>,
    },
    /// The file is not the release.
    #[error(
        "warning: {url} is not the release of Kubernetes ({bytes} bytes); {sums}; the file was deleted without being \
         unpacked"
    )]
    Checksum {
        /// The URL of the request.
        url: String,
        /// How many bytes were received.
        bytes: u64,
        /// The expected and the actual checksum.
        sums: Box<Sums>,
    },
    /// The archive lacks programs.
    #[error("{url} does not contain {}", missing.join(", "))]
    MissingPrograms {
        /// The URL of the request.
        url: String,
        /// The names of the programs.
        missing: Vec<String>,
    },
}

/// The SHA-512 that was expected, and that of what was received.
#[derive(Debug)]
pub struct Sums {
    expected: String,
    received: String,
}

impl fmt::Display for Sums {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "expected SHA-512 {}, received {}", self.expected, self.received)
    }
}

/// Timeouts of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadLimits {
    /// The first connection, with name resolution and TLS.
    pub connect: Duration,
    /// A connection that the site redirects to, an answer, and each further piece of the file.
    pub stall: Duration,
    /// Everything.
    pub total: Duration,
}

impl Default for DownloadLimits {
    fn default() -> Self {
        Self {
            // An unreachable site is to be noticed within two seconds, on a busy host too.
            connect: Duration::from_millis(1500),
            stall: Duration::from_secs(10),
            // A build takes about as long.
            total: Duration::from_secs(15 * 60),
        }
    }
}

/// A server archive of Kubernetes: where it is, and its SHA-512.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerArchive {
    url: String,
    sha512: String,
}

impl ServerArchive {
    /// The pinned archive for this host. None: the user wants the programs to be built ([`SITE_VARIABLE`] is empty), or
    /// no sum is pinned for this architecture.
    pub fn pinned() -> Option<Self> {
        let site = std::env::var(SITE_VARIABLE).unwrap_or_else(|_| SITE.into());
        Self::of(&site, std::env::consts::ARCH)
    }

    fn of(site: &str, architecture: &str) -> Option<Self> {
        let site = site.trim().trim_end_matches('/');
        let (_, architecture, sha512) = ARCHIVES.into_iter().find(|(rust, ..)| *rust == architecture)?;
        let url = format!("{site}/{VERSION}/kubernetes-server-linux-{architecture}.tar.gz");
        (!site.is_empty()).then(|| Self::new(url, sha512))
    }

    pub(crate) fn new(url: impl Into<String>, sha512: impl Into<String>) -> Self {
        Self { url: url.into(), sha512: sha512.into() }
    }

    /// The SHA-512, which also distinguishes the results of different archives.
    pub(crate) fn sha512(&self) -> &str {
        &self.sha512
    }

    /// Downloads and verifies the archive, and unpacks `programs` into the folder `into`. After an error, the folder
    /// may hold a part of them: use [`cache::once`].
    pub fn unpack(&self, programs: &[&str], into: &Path, limits: DownloadLimits, step: &Step) -> Result<()> {
        let file = into.join(ARCHIVE_FILE);
        self.download(&file, limits, step)?;
        step.progress("unpacking");
        let missing = unpack_programs(&file, programs, into)
            .doing(|| format!("unpacking {} from {}", file.display(), self.url))?;
        if !missing.is_empty() {
            return Err(Error::Release(ReleaseError::MissingPrograms { url: self.url.clone(), missing }));
        }
        cache::remove(&file)
    }

    fn download(&self, path: &Path, limits: DownloadLimits, step: &Step) -> Result<()> {
        let mut file = File::create(path).doing(|| format!("creating {}", path.display()))?;
        let download = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .doing(|| "starting the download's runtime".into())?;
            let outcome = runtime.block_on(async {
                let Ok(outcome) = timeout(limits.total, self.receive(&mut file, path, limits, step)).await else {
                    return Err(Error::Release(ReleaseError::Slow { url: self.url.clone(), waited: limits.total }));
                };
                outcome
            });
            // A name that is still being resolved may take half a minute; the download does not wait for it.
            runtime.shutdown_background();
            outcome
        };
        // The caller may be on a thread of a runtime, which cannot run another one.
        std::thread::scope(|scope| scope.spawn(download).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Writes the body to the file, and compares its sum with the pinned one.
    async fn receive(&self, file: &mut File, path: &Path, limits: DownloadLimits, step: &Step) -> Result<()> {
        let mut response = self.request(limits).await.map_err(Error::Release)?;
        let length =
            response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let (mut hash, mut bytes) = (Sha512::new(), 0);
        let cut_off = loop {
            let frame = match timeout(limits.stall, response.frame()).await {
                Err(_) => {
                    return Err(Error::Release(ReleaseError::Stalled { url: self.url.clone(), waited: limits.stall }));
                }
                Ok(None) => break None,
                Ok(Some(Err(error))) => break Some(chain(&error)),
                Ok(Some(Ok(frame))) => frame,
            };
            if let Some(data) = frame.data_ref() {
                hash.update(data);
                file.write_all(data).doing(|| format!("writing {}", path.display()))?;
                bytes += data.len() as u64;
                step.progress(&received_of(bytes, length));
            }
        };
        let received: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let is_pinned = received == self.sha512;
        let (url, sums) = (self.url.clone(), Box::new(Sums { expected: self.sha512.clone(), received }));
        match cut_off {
            Some(cause) => Err(Error::Release(ReleaseError::Incomplete { url, bytes, length, cause, sums })),
            None if !is_pinned => Err(Error::Release(ReleaseError::Checksum { url, bytes, sums })),
            None => Ok(()),
        }
    }

    /// Requests the archive, following redirects.
    async fn request(&self, limits: DownloadLimits) -> Result<Response<Incoming>, ReleaseError> {
        let mut connect_limit = limits.connect;
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS {
            let unreachable = |cause: String| ReleaseError::Unreachable { url: url.clone(), cause };
            let uri: Uri = url.parse().map_err(|error| unreachable(chain(&error)))?;
            let stream = timeout(connect_limit, connect(&uri))
                .await
                .unwrap_or_else(|_| Err(format!("no connection after {:.1} s", connect_limit.as_secs_f64())))
                .map_err(unreachable)?;
            // The site can be reached, so the server that it redirects to has more time.
            connect_limit = limits.stall;
            let response = timeout(limits.stall, get(stream, &uri))
                .await
                .unwrap_or_else(|_| Err(ReleaseError::Stalled { url: url.clone(), waited: limits.stall }))?;
            if response.status().is_redirection() {
                let location = response.headers().get(LOCATION).map(|location| location.as_bytes()).unwrap_or_default();
                let location = String::from_utf8_lossy(location).into_owned();
                url = match resolve(&uri, &location) {
                    Some(next) => next,
                    None => return Err(ReleaseError::Redirect { url, location }),
                };
            } else if response.status() == StatusCode::OK {
                return Ok(response);
            } else {
                return Err(ReleaseError::Status { url, status: response.status() });
            }
        }
        Err(ReleaseError::Redirect { url: self.url.clone(), location: url })
    }
}

/// A connection to the server that a URL names, with TLS if it is an `https` one.
async fn connect(uri: &Uri) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, String> {
    let connector = connector(uri).map_err(|error| chain(&error))?;
    connector.oneshot(uri.clone()).await.map_err(|error| chain(error.as_ref()))
}

fn connector(uri: &Uri) -> Result<HttpsConnector<HttpConnector>, io::Error> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = match uri.scheme_str() {
        Some("https") => HttpsConnectorBuilder::new().with_provider_and_platform_verifier(provider)?,
        // The host's certificates are not needed, and may be missing.
        Some("http") => HttpsConnectorBuilder::new().with_tls_config(
            ClientConfig::builder_with_provider(provider.into())
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth(),
        ),
        _ => return Err(io::Error::other("the URL begins with neither http:// nor https://")),
    };
    Ok(builder.https_or_http().enable_http1().build())
}

/// Sends the request, and waits for the head of the answer.
async fn get(stream: MaybeHttpsStream<TokioIo<TcpStream>>, uri: &Uri) -> Result<Response<Incoming>, ReleaseError> {
    let failed =
        |error: &(dyn StdError + 'static)| ReleaseError::Unreachable { url: uri.to_string(), cause: chain(error) };
    let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| failed(&error))?;
    // The reader of the response sees its errors.
    tokio::spawn(connection);
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(HOST, format!("{}{port}", uri.host().unwrap_or_default()))
        .header(USER_AGENT, concat!("messina-testbed/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    sender.send_request(request).await.map_err(|error| failed(&error))
}

/// The URL that a redirect points to: a complete one, or a path on the same server.
fn resolve(from: &Uri, location: &str) -> Option<String> {
    if location.starts_with("https://") || location.starts_with("http://") {
        Some(location.to_owned())
    } else if location.starts_with('/') && !location.starts_with("//") {
        Some(format!("{}://{}{location}", from.scheme_str()?, from.authority()?))
    } else {
        None
    }
}

/// Unpacks the programs from the verified archive; returns the names of those that are not in it.
fn unpack_programs(archive: &Path, programs: &[&str], into: &Path) -> io::Result<Vec<String>> {
    let mut missing = programs.to_vec();
    let mut archive = tar::Archive::new(GzDecoder::new(BufReader::new(File::open(archive)?)));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_program =
            entry.header().entry_type().is_file() && path.parent().is_some_and(|folder| folder.ends_with("server/bin"));
        let wanted = missing.iter().position(|name| path.file_name().is_some_and(|file| file == *name));
        if let Some(wanted) = wanted
            && is_program
        {
            let program = into.join(missing.swap_remove(wanted));
            let mut file = File::options().create_new(true).write(true).mode(0o755).open(program)?;
            io::copy(&mut entry, &mut file)?;
        }
        if missing.is_empty() {
            break;
        }
    }
    Ok(missing.into_iter().map(str::to_owned).collect())
}

fn received_of(bytes: u64, length: Option<u64>) -> String {
    let megabytes = |bytes: u64| bytes / 1_000_000;
    match length {
        Some(length) => format!("{} of {} MB", megabytes(bytes), megabytes(length)),
        None => format!("{} MB", megabytes(bytes)),
    }
}

/// An error with its sources.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let errors = std::iter::successors(Some(error), |error| (*error).source());
    errors.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
pub(crate) mod tests;
