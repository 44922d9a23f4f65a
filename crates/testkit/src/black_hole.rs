//! An address that swallows connection attempts: no refusal, no answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// A listener whose queue is full and is never emptied: Linux drops every further SYN.
pub struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    /// Takes a free port of `ip` if `port` is 0.
    pub async fn start(ip: IpAddr, port: u16) -> io::Result<Self> {
        let socket = if ip.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(ip, port))?;
        let listener = socket.listen(1)?;
        let address = listener.local_addr()?;
        let mut queued = Vec::new();
        // A connection that is not made at once on loopback is one that was dropped.
        while let Ok(connected) =
            timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            queued.push(connected?);
        }
        Ok(Self { address, _listener: listener, _queued: queued })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
