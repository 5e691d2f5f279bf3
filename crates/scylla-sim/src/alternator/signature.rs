//! Signatures of requests, AWS' version 4: ScyllaDB checks them with the salted hash of the role's password as the secret.

use std::collections::BTreeMap;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use ring::{digest, hmac};

use super::Fault;
use crate::web::Request;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TOLERANCE_SECONDS: i64 = 15 * 60;

/// Checks that a request was signed by a user.
pub(super) fn check(request: &Request, users: &BTreeMap<String, String>, now: Timestamp) -> Result<(), Fault> {
    if request.header("host").is_none() {
        return Err(invalid("Host header is mandatory for signature verification"));
    }
    let Some(authorization) = request.header("authorization") else {
        let message = "Authorization header is mandatory for signature verification";
        return Err(Fault::new("MissingAuthenticationTokenException", message));
    };
    let Some(fields) = authorization.strip_prefix(ALGORITHM) else {
        return Err(invalid("Authorization header must use AWS4-HMAC-SHA256 algorithm"));
    };
    let fields: BTreeMap<&str, &str> = fields.split([' ', ',']).filter_map(|field| field.split_once('=')).collect();
    let field = |name| fields.get(name).copied().unwrap_or_default();
    let credential: Vec<&str> = field("Credential").split('/').collect();
    let [user, day, region, service, "aws4_request"] = credential[..] else {
        return Err(Fault::new("ValidationException", "Incorrect credential information format"));
    };
    let Some(date) = request.header("x-amz-date") else {
        return Err(invalid("X-Amz-Date header is mandatory for signature verification"));
    };
    check_date(date, day, now)?;
    let Some(secret) = users.get(user) else {
        return Err(Fault::new("UnrecognizedClientException", &format!("User not found: {user}")));
    };
    let scope = Scope { date, day, region, service };
    if sign(request, field("SignedHeaders"), &scope, secret) != field("Signature") {
        let message = "The security token included in the request is invalid.";
        return Err(Fault::new("UnrecognizedClientException", message));
    }
    Ok(())
}

fn invalid(message: &str) -> Fault {
    Fault::new("InvalidSignatureException", message)
}

fn check_date(date: &str, day: &str, now: Timestamp) -> Result<(), Fault> {
    let time = DateTime::strptime("%Y%m%dT%H%M%SZ", date).ok();
    let time = time.and_then(|time| time.to_zoned(TimeZone::UTC).ok()).map(|time| time.timestamp());
    let Some(time) = time.filter(|_| date.starts_with(day)) else {
        return Err(invalid("X-Amz-Date is no date, or not the one of the credential"));
    };
    let age = now.as_second() - time.as_second();
    match age {
        age if age > TOLERANCE_SECONDS => Err(invalid(&format!("Signature expired: {date}"))),
        age if age < -TOLERANCE_SECONDS => Err(invalid(&format!("Signature not yet current: {date}"))),
        _ => Ok(()),
    }
}

pub(super) struct Scope<'a> {
    pub(super) date: &'a str,
    pub(super) day: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// Returns the signature of a request.
pub(super) fn sign(request: &Request, signed_headers: &str, scope: &Scope<'_>, secret: &str) -> String {
    let mut headers = String::new();
    for name in signed_headers.split(';') {
        let value = request.header(name).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        headers += &format!("{name}:{value}\n");
    }
    let (path, query) = request.path_and_query.split_once('?').unwrap_or((&request.path_and_query, ""));
    let body = hex(digest::digest(&digest::SHA256, &request.body).as_ref());
    let canonical = format!("{}\n{path}\n{query}\n{headers}\n{signed_headers}\n{body}", request.method);
    let Scope { date, day, region, service } = scope;
    let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("{ALGORITHM}\n{date}\n{day}/{region}/{service}/aws4_request\n{canonical}");
    let key = [*day, *region, *service, "aws4_request"]
        .iter()
        .fold(format!("AWS4{secret}").into_bytes(), |key, part| mac(&key, part.as_bytes()));
    hex(&mac(&key, text.as_bytes()))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;

    /// AWS' published example: GET of a list of users, signed with its example secret.
    #[test]
    fn published_example_has_the_published_signature() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("iam.amazonaws.com"));
        headers.insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8"));
        headers.insert("x-amz-date", HeaderValue::from_static("20150830T123600Z"));
        let request = Request {
            method: Method::GET,
            path: "/".to_owned(),
            path_and_query: "/?Action=ListUsers&Version=2010-05-08".to_owned(),
            query: BTreeMap::new(),
            headers,
            body: "".into(),
        };
        let scope = Scope { date: "20150830T123600Z", day: "20150830", region: "us-east-1", service: "iam" };
        let signature =
            sign(&request, "content-type;host;x-amz-date", &scope, "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
        assert_eq!(signature, "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7");
    }

    #[test]
    fn date_must_be_recent() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for (date, day, is_good) in [
            ("20261115T120000Z", "20261115", true),
            ("20261115T114600Z", "20261115", true),
            ("20261115T114400Z", "20261115", false),
            ("20261115T121600Z", "20261115", false),
            ("20261115T120000Z", "20261114", false),
            ("today", "today", false),
        ] {
            assert_eq!(check_date(date, day, now).is_ok(), is_good, "{date}");
        }
    }
}
