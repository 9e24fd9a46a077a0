//! Certificates of a certificate authority that this process trusts, and of one that it does not.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// What is wrong with a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It was valid once.
    Expired,
    /// It is for another host.
    OtherHost,
    /// The client does not know who signed it.
    UnknownRoot,
}

/// A server's side of TLS for `localhost`; the authority's certificate is written to `roots` where it is to be trusted.
pub fn tls(flaw: Flaw, roots: &Path) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let trusted = authority.self_signed(&key).unwrap();
    let issuer = if flaw == Flaw::UnknownRoot {
        Issuer::new(authority, KeyPair::generate().unwrap())
    } else {
        Issuer::new(authority, key)
    };
    std::fs::write(roots, trusted.pem()).unwrap();
    let host = if flaw == Flaw::OtherHost { "elsewhere.example" } else { "localhost" };
    let mut leaf = CertificateParams::new([host.to_owned()]).unwrap();
    if flaw == Flaw::Expired {
        leaf.not_before = date_time_ymd(2020, 1, 1);
        leaf.not_after = date_time_ymd(2021, 1, 1);
    }
    let leaf_key = KeyPair::generate().unwrap();
    let certificate = leaf.signed_by(&leaf_key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap())
}
