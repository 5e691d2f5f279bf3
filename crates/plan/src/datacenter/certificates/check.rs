//! Checks whether a stored certificate is still valid, or must be signed again.

use jiff::{SignedDuration, Timestamp};

use crate::datacenter::model::{
    certificate::{
        chain::{DesiredCertificate, Purpose, SignedCertificate, SigningRequest},
        reading::Certificate,
    },
    observed::Observed,
};

/// How far `notBefore` is backdated, because clocks differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);
/// The shortest time between two signatures while nodes get their addresses one after another.
const MIN_SIGNING_INTERVAL: SignedDuration = SignedDuration::from_mins(2);

/// The result of a check.
pub(crate) enum CertificateCheck<'a> {
    ValidCertificate(ValidCertificate<'a>),
    Sign(String),
}

pub(crate) struct ValidCertificate<'a> {
    pub(crate) certificates: &'a [Certificate],
    /// When it has to be checked again.
    pub(crate) requeue_at: Timestamp,
}

impl DesiredCertificate {
    /// Checks the stored certificate. The certificate that a CA signs is checked only if the CA is valid.
    pub(crate) fn check<'a>(&self, observed: &'a Observed) -> CertificateCheck<'a> {
        let now = observed.now;
        let sign = |reason: &str| CertificateCheck::Sign(reason.to_owned());
        let Some(stored) = observed.certificates.get(&self.name) else { return sign("there is none") };
        let Some(own) = stored.certificates.first() else { return sign("the certificate cannot be read") };
        if !stored.fits_key {
            return sign("the key is not that of the certificate");
        }
        let refresh_at = self.refresh_at(own);
        if now >= own.not_after {
            return CertificateCheck::Sign(format!("it ran out at {}", own.not_after));
        }
        if now >= refresh_at {
            return CertificateCheck::Sign(format!("it is renewed from {refresh_at} on"));
        }
        if !self.is_for_this(own) {
            return sign("it is for something else");
        }
        if !stored.is_signed {
            return sign("its authority has changed");
        }
        let desired = &self.names;
        let has_all = desired.dns_names.is_subset(&own.dns_names) && desired.addresses.is_subset(&own.addresses);
        let has_no_more = own.dns_names.is_subset(&desired.dns_names) && own.addresses.is_subset(&desired.addresses);
        let is_complete = desired.pending.is_empty();
        let may_sign_at = own.not_before.saturating_add(MIN_SIGNING_INTERVAL).unwrap_or(Timestamp::MAX);
        let requeue_at = match (has_all, is_complete) {
            (true, true) if has_no_more => refresh_at,
            // An obsolete name is harmless; it goes when the missing names are known and the certificate is signed
            // again.
            (true, false) => refresh_at,
            (false, false) if now < may_sign_at => may_sign_at.min(refresh_at),
            _ => return sign("nodes have other names or addresses"),
        };
        CertificateCheck::ValidCertificate(ValidCertificate { certificates: &stored.certificates, requeue_at })
    }

    pub(crate) fn is_for_this(&self, certificate: &Certificate) -> bool {
        let subject = |name: &Option<String>| name.as_ref().map(|name| format!("CN={name}"));
        let is_former = self.former.is_some() && subject(&self.former).as_ref() == Some(&certificate.subject);
        (is_former || certificate.subject == subject(&self.common_name).unwrap_or_default())
            && match self.purpose {
                Purpose::Authority => certificate.is_authority,
                Purpose::Client => certificate.is_for_clients && !certificate.is_authority,
                Purpose::Serving => certificate.is_for_servers && !certificate.is_authority,
            }
    }

    /// Returns when it is renewed: at the end of its refresh term, or when a fifth of its validity is left, whichever
    /// comes first.
    pub(crate) fn refresh_at(&self, certificate: &Certificate) -> Timestamp {
        let fifth = certificate.not_after.duration_since(certificate.not_before) / 5;
        let latest = certificate.not_after.saturating_sub(fifth).unwrap_or(Timestamp::MIN);
        certificate.not_before.saturating_add(self.term.refresh).unwrap_or(Timestamp::MAX).min(latest)
    }

    /// Returns the request to sign it. It does not outlive its CA.
    pub(crate) fn signing_request(
        &self,
        reason: String,
        signer: Option<(&Certificate, SignedCertificate)>,
        now: Timestamp,
    ) -> SigningRequest {
        let end = now.saturating_add(self.term.validity).unwrap_or(Timestamp::MAX);
        SigningRequest {
            secret: self.name.clone(),
            purpose: self.purpose,
            common_name: self.common_name.clone(),
            dns_names: self.names.dns_names.clone(),
            addresses: self.names.addresses.clone(),
            not_before: now.saturating_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN),
            not_after: signer.as_ref().map_or(end, |(authority, _)| end.min(authority.not_after)),
            signer: signer.map(|(_, signer)| signer),
            reason,
        }
    }
}
