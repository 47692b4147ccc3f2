//! How a connection says which stage of a node it is for: by the server name in its first TLS message (SNI). The name is
//! the stage's number and no host's, and proves nothing: a peer is verified by its key and role. A plain connection says
//! the same in a line of its own before everything else.
//!
//! Who means the first stage says nothing. So do releases that know no stages.

use std::net::Ipv4Addr;

use rustls::pki_types::ServerName;
use rustls::server::Acceptor;

use super::TlsError;
use crate::address::{FIRST_STAGE, stage_number};

/// First byte of a TLS connection: a handshake record.
pub(super) const TLS_BEGINS: u8 = 0x16;
/// The server name of a stage is its number between these ...
const NAME_BEGINS: &str = "stage-";
/// ... two.
const NAME_ENDS: &str = ".brigade";
/// How the line of a plain connection begins; a number and a line's end follow. No HTTP request begins so.
const LINE_BEGINS: &str = "STAGE ";
/// Bytes of such a line at most.
const LINE_BYTES: usize = LINE_BEGINS.len() + 3;

/// What the first bytes of a connection say about its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// They are not all there yet.
    Cut,
    /// It is for this stage. A plain connection has said so in a line of this many bytes.
    Stage {
        /// The stage's number.
        number: u8,
        /// Bytes of the line; 0 over TLS.
        line_bytes: usize,
    },
    /// They have a name, and no stage can have it.
    NoStage,
}

impl Greeting {
    /// For who says nothing, and for all that the stage itself has to refuse.
    const FIRST: Self = Self::Stage { number: FIRST_STAGE, line_bytes: 0 };

    /// Reads the bytes with which a connection begins.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        match bytes.first() {
            None => Self::Cut,
            Some(&TLS_BEGINS) => Self::of_client_hello(bytes),
            Some(_) => Self::of_line(bytes),
        }
    }

    fn of_client_hello(mut bytes: &[u8]) -> Self {
        let mut acceptor = Acceptor::default();
        while !bytes.is_empty() {
            // It reads from memory, and takes as much at once as it has room for.
            if !acceptor.read_tls(&mut bytes).is_ok_and(|n| n > 0) {
                return Self::FIRST;
            }
        }
        match acceptor.accept() {
            Ok(None) => Self::Cut,
            Ok(Some(accepted)) => match accepted.client_hello().server_name() {
                None => Self::FIRST,
                Some(name) => stage_called(name)
                    .map_or(Self::NoStage, |number| Self::Stage { number, line_bytes: 0 }),
            },
            // The stage says what is wrong with it.
            Err(_) => Self::FIRST,
        }
    }

    fn of_line(bytes: &[u8]) -> Self {
        let begin = LINE_BEGINS.as_bytes();
        if !bytes.starts_with(begin) {
            return if begin.starts_with(bytes) { Self::Cut } else { Self::FIRST };
        }
        let line = &bytes[..bytes.len().min(LINE_BYTES)];
        match line.iter().position(|byte| *byte == b'\n') {
            None if line.len() < LINE_BYTES => Self::Cut,
            None => Self::NoStage,
            Some(end) => {
                let number = std::str::from_utf8(&line[begin.len()..end]).ok();
                number
                    .and_then(stage_number)
                    .map_or(Self::NoStage, |number| Self::Stage { number, line_bytes: end + 1 })
            }
        }
    }
}

fn stage_called(name: &str) -> Option<u8> {
    stage_number(name.strip_prefix(NAME_BEGINS)?.strip_suffix(NAME_ENDS)?)
}

/// The server name for a stage, and whether it is sent: for the first one it is not.
///
/// # Errors
/// The name is no host's name; no number makes one.
pub(super) fn server_name(stage: u8) -> Result<(ServerName<'static>, bool), TlsError> {
    if stage == FIRST_STAGE {
        // It stands in the place of a name.
        return Ok((ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into()), false));
    }
    let name = ServerName::try_from(format!("{NAME_BEGINS}{stage}{NAME_ENDS}"));
    Ok((name.map_err(|e| TlsError::crypto("name a stage", e))?, true))
}

/// The line with which a plain connection says its stage; none for the first.
pub(crate) fn plain_line(stage: u8) -> Option<String> {
    (stage != FIRST_STAGE).then(|| format!("{LINE_BEGINS}{stage}\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::tls::provider::provider;

    const fn stage(number: u8, line_bytes: usize) -> Greeting {
        Greeting::Stage { number, line_bytes }
    }

    /// The first message of a client to a server of this name.
    fn client_hello(name: ServerName<'static>, sent: bool) -> Vec<u8> {
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let mut config =
            builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        config.enable_sni = sent;
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_client_hello_names_its_stage() {
        for number in [1, 2, 64] {
            let (name, is_sent) = server_name(number).unwrap();
            let hello = client_hello(name, is_sent);
            assert_eq!(Greeting::read(&hello), stage(number, 0));
            for n in 0..hello.len() {
                assert_eq!(Greeting::read(&hello[..n]), Greeting::Cut, "{n} bytes of {number}");
            }
        }
        for name in ["brigade", "stage-65.brigade", "stage-02.brigade", "stage-2.brigade.x", "lab"]
        {
            let hello = client_hello(ServerName::try_from(name).unwrap(), true);
            assert_eq!(Greeting::read(&hello), Greeting::NoStage, "{name}");
        }
    }

    #[test]
    fn a_greeting_in_several_records_is_read_too() {
        let (name, is_sent) = server_name(3).unwrap();
        let hello = client_hello(name, is_sent);
        let (head, body) = hello.split_at(5);
        let mut parted = Vec::new();
        for part in body.chunks(40) {
            let nbytes = u16::try_from(part.len()).unwrap().to_be_bytes();
            parted.extend([&head[..3], &nbytes[..], part].concat());
        }
        assert_eq!(Greeting::read(&parted), stage(3, 0));
    }

    #[test]
    fn a_plain_connection_names_its_stage_in_a_line() {
        let with_line = format!("{}PRI * HTTP/2.0", plain_line(12).unwrap());
        assert_eq!(Greeting::read(with_line.as_bytes()), stage(12, 9));
        assert_eq!(plain_line(1), None);
        for cut in ["", "S", "STAGE", "STAGE ", "STAGE 1", "STAGE 12"] {
            assert_eq!(Greeting::read(cut.as_bytes()), Greeting::Cut, "{cut}");
        }
        for bad in ["STAGE \n", "STAGE 0\n", "STAGE 65\n", "STAGE 123", "STAGE x\n"] {
            assert_eq!(Greeting::read(bad.as_bytes()), Greeting::NoStage, "{bad}");
        }
        // What the stage itself answers, or refuses.
        for other in [&b"PRI * HTTP/2.0"[..], b"GET / HTTP/1.1", b"STA!", &[0; 99]] {
            assert_eq!(Greeting::read(other), stage(1, 0), "{other:?}");
        }
        let absurd = [TLS_BEGINS, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff];
        assert_eq!(Greeting::read(&absurd), stage(1, 0));
    }
}
