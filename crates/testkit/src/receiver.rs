//! An HTTP/1.1 receiver on a raw socket that does what its script says.

use crate::PATIENCE;
use crate::reply::{Reply, Step};
use crate::request::ReceivedRequest;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

type Script = Box<dyn FnMut(&ReceivedRequest) -> Reply + Send>;

/// Listens until it is dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

/// For what is not said, a receiver listens on a free port of 127.0.0.1 without TLS.
pub struct ReceiverBuilder {
    ip: IpAddr,
    port: u16,
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsAcceptor>,
}

struct Shared {
    state: Mutex<State>,
    request_count: watch::Sender<usize>,
}

struct State {
    script: Script,
    requests: Vec<ReceivedRequest>,
    /// Requests that `next_request` has handed out.
    handed_out: usize,
    connections: usize,
    open_connections: usize,
    server_names: Vec<String>,
}

impl Receiver {
    /// Gives the same reply to everything.
    pub async fn always(reply: Reply) -> Self {
        Self::with(move |_| reply.clone()).await
    }

    /// Gives these replies in order, and the last one from then on.
    pub async fn in_order(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with(in_order(replies)).await
    }

    /// Asks `script` what to do with each request.
    pub async fn with(script: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static) -> Self {
        Self::builder().start(script).await
    }

    pub fn builder() -> ReceiverBuilder {
        ReceiverBuilder {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `http://address` and `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on `reply` is the answer to everything.
    pub fn change_to(&self, reply: Reply) {
        self.shared.state().script = Box::new(move |_| reply.clone());
    }

    /// From now on `script` is asked.
    pub fn change_script(&self, script: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static) {
        self.shared.state().script = Box::new(script);
    }

    /// Everything that was received whole so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.state().requests.clone()
    }

    /// Connections that were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// Connections that neither side has ended.
    pub fn open_connections(&self) -> usize {
        self.shared.state().open_connections
    }

    /// The names that senders asked for in TLS (SNI), one per connection that had one.
    pub fn server_names(&self) -> Vec<String> {
        self.shared.state().server_names.clone()
    }

    /// Waits for the request after the one that the last call returned.
    ///
    /// # Panics
    /// When none comes within `PATIENCE`.
    pub async fn next_request(&self) -> ReceivedRequest {
        let index = {
            let mut state = self.shared.state();
            state.handed_out += 1;
            state.handed_out - 1
        };
        let mut requests = self.wait_for(index + 1).await;
        requests.swap_remove(index)
    }

    /// Waits until at least `count` requests were received, and returns them all.
    ///
    /// # Panics
    /// When they do not come within `PATIENCE`.
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedRequest> {
        let mut counted = self.shared.request_count.subscribe();
        // What `wait_for` gives holds a lock that a request on its way in needs: it goes at once.
        let came = timeout(PATIENCE, counted.wait_for(|seen| *seen >= count)).await.is_ok();
        let seen = self.requests();
        assert!(came, "{count} requests expected, {} came", seen.len());
        seen
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl ReceiverBuilder {
    #[must_use]
    pub fn on(mut self, ip: IpAddr, port: u16) -> Self {
        self.ip = ip;
        self.port = port;
        self
    }

    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, identity: &crate::Identity, alpn: &[&str]) -> Self {
        self.tls = Some(identity.acceptor(alpn));
        self
    }

    /// # Panics
    /// When the address cannot be listened on.
    pub async fn start(
        self,
        script: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static,
    ) -> Receiver {
        let listener = TcpListener::bind(SocketAddr::new(self.ip, self.port))
            .await
            .expect("the address can be listened on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                script: Box::new(script),
                requests: Vec::new(),
                handed_out: 0,
                connections: 0,
                open_connections: 0,
                server_names: Vec::new(),
            }),
            request_count: watch::Sender::new(0),
        });
        let listening = tokio::spawn(self.listen(listener, Arc::clone(&shared)));
        Receiver { address, shared, listening }
    }

    async fn listen(self, listener: TcpListener, shared: Arc<Shared>) {
        // Dropped with this task, and with it every connection.
        let mut serving = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            while serving.try_join_next().is_some() {}
            let number = shared.connected();
            let shared = Arc::clone(&shared);
            #[cfg(feature = "tls")]
            if let Some(acceptor) = self.tls.clone() {
                serving.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let name = stream.get_ref().1.server_name().map(str::to_owned);
                        shared.state().server_names.extend(name);
                        serve(stream, number, &shared).await;
                    }
                    shared.disconnected();
                });
                continue;
            }
            serving.spawn(async move {
                let _ = stream.set_nodelay(true);
                serve(stream, number, &shared).await;
                shared.disconnected();
            });
        }
    }
}

impl Shared {
    fn connected(&self) -> usize {
        let mut state = self.state();
        state.connections += 1;
        state.open_connections += 1;
        state.connections
    }

    fn disconnected(&self) {
        self.state().open_connections -= 1;
    }

    fn take(&self, mut request: ReceivedRequest) -> Reply {
        let mut state = self.state();
        request.number = state.requests.len() + 1;
        let reply = (state.script)(&request);
        state.requests.push(request);
        self.request_count.send_replace(state.requests.len());
        reply
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that can be ended with a reset.
trait Resettable {
    fn reset_on_drop(&self);
}

impl Resettable for TcpStream {
    fn reset_on_drop(&self) {
        let _ = self.set_zero_linger();
    }
}

#[cfg(feature = "tls")]
impl Resettable for tokio_rustls::server::TlsStream<TcpStream> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}

async fn serve<S>(mut stream: S, connection: usize, shared: &Shared)
where
    S: AsyncRead + AsyncWrite + Resettable + Unpin,
{
    let mut buffer = Vec::new();
    let mut is_first = true;
    while let Ok(Some(mut request)) = read_request(&mut stream, &mut buffer, connection).await {
        request.is_first_on_connection = is_first;
        is_first = false;
        let reply = shared.take(request);
        for step in reply.steps {
            if !perform(&mut stream, step).await {
                return;
            }
        }
    }
}

/// False when the connection is over.
async fn perform<S>(stream: &mut S, step: Step) -> bool
where
    S: AsyncRead + AsyncWrite + Resettable + Unpin,
{
    match step {
        Step::Write(bytes) => write(stream, &bytes).await,
        Step::Wait(pause) => {
            sleep(pause).await;
            true
        }
        Step::Drip { bytes, every } => {
            for byte in bytes {
                sleep(every).await;
                if !write(stream, &[byte]).await {
                    return false;
                }
            }
            true
        }
        Step::Repeat(bytes) => {
            while write(stream, &bytes).await {}
            false
        }
        Step::Hang => {
            // Until the sender gives up.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            false
        }
        Step::Close => {
            let _ = stream.shutdown().await;
            false
        }
        Step::Reset => {
            stream.reset_on_drop();
            false
        }
    }
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok()
}

/// The next whole request, or `None` when the sender has closed.
pub(crate) async fn read_request<S: AsyncRead + Unpin>(
    stream: &mut S,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> io::Result<Option<ReceivedRequest>> {
    let head_end = loop {
        if let Some(position) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break position + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = Bytes::from(buffer.drain(..head_end).collect::<Vec<u8>>());
    let mut request = ReceivedRequest {
        connection,
        number: 0,
        is_first_on_connection: false,
        head,
        body: Bytes::new(),
    };
    let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    request.body = buffer.drain(..length).collect::<Vec<u8>>().into();
    Ok(Some(request))
}

fn in_order(
    replies: impl IntoIterator<Item = Reply>,
) -> impl FnMut(&ReceivedRequest) -> Reply + Send + 'static {
    let mut replies: VecDeque<Reply> = replies.into_iter().collect();
    move |_| {
        let next = if replies.len() > 1 { replies.pop_front() } else { replies.front().cloned() };
        next.unwrap_or_else(Reply::ok)
    }
}
