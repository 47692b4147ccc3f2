//! The address and identity of a worker: everything that a further connection to it needs.

use brigade_proto::address::Address;
use brigade_proto::net::{Connection, NetError, Network};
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{KeyId, Role};
use bytes::Bytes;

/// How a worker is reached.
#[derive(Clone, Debug)]
pub struct Reach {
    address: Address,
    network: Network,
    /// The identity that it showed at the handshake; `None` over a plain connection.
    peer: Option<Expected>,
    /// The name in its certificate.
    node: Option<String>,
}

impl Reach {
    /// Dials a worker whom nothing is known of yet: over TLS where it speaks that and this process does.
    ///
    /// # Errors
    /// [`NetError`].
    pub async fn find(
        address: &Address,
        network: &Network,
    ) -> Result<(Self, Connection), NetError> {
        let worker = Expected { role: Role::Worker, key: None };
        let connection = network.dial_either(address, worker).await?;
        let node = connection.who().party().map(|party| party.name.clone());
        let key = connection.who().party().map(|party| party.key);
        let peer = key.map(|key| Expected { role: Role::Worker, key: Some(key) });
        Ok((Self { address: address.clone(), network: network.clone(), peer, node }, connection))
    }

    /// A plain connection to whatever listens at an address, for tests.
    #[cfg(test)]
    pub async fn unasked(address: &Address) -> (Self, Connection) {
        let network = Network::plain(false);
        let connection = network.dial(address, None).await.unwrap();
        (Self { address: address.clone(), network, peer: None, node: None }, connection)
    }

    /// Another connection to the same worker.
    ///
    /// # Errors
    /// [`NetError`], also where another process answers at the address.
    pub async fn dial(&self) -> Result<Connection, NetError> {
        self.network.dial(&self.address, self.peer).await
    }

    /// The address at which it is dialled.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The worker's name in the cluster; `None` over plain connections.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The worker's key; `None` over plain connections.
    pub fn key(&self) -> Option<KeyId> {
        self.peer.and_then(|peer| peer.key)
    }

    /// The id of its key, as other workers are told; empty over plain connections.
    pub fn key_bytes(&self) -> Bytes {
        self.key().map_or_else(Bytes::new, |key| Bytes::copy_from_slice(key.as_bytes()))
    }

    /// Revocations that are in force, encoded for heartbeats.
    pub fn revoked(&self) -> Vec<u8> {
        self.network.credentials().map_or_else(Vec::new, |own| own.revoked().to_bytes())
    }
}
