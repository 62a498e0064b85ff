//! The demo's bucket: of an S3 server on 127.0.0.1, if one is installed, else a directory.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::say::{failed, step};
use super::stage::Demo;
use crate::control::progress;
use crate::term::problem::Result;

/// The bucket's name.
const NAME: &str = "watertight";
/// The access key. Its secret is each run's own; moto and weed ask for none.
const ACCESS_KEY: &str = "watertight";
/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one try may take.
const TRY: Duration = Duration::from_secs(2);

/// A server: its program, how many ports it takes, its arguments.
struct Server {
    program: &'static str,
    ports: usize,
    arguments: fn(&[u16], &str) -> Vec<String>,
    /// A directory of its data is a bucket.
    is_bucket_directory: bool,
}

/// Those that are known, the quickest first.
const SERVERS: [Server; 4] = [
    Server {
        program: "versitygw",
        ports: 1,
        arguments: |ports, data| {
            let port = format!("127.0.0.1:{}", ports[0]);
            ["--port", &port, "posix", data].map(str::to_owned).into()
        },
        is_bucket_directory: true,
    },
    Server {
        program: "minio",
        ports: 2,
        arguments: |ports, data| {
            let [api, console] = [ports[0], ports[1]].map(|port| format!("127.0.0.1:{port}"));
            ["server", "--address", &api, "--console-address", &console, data].map(str::to_owned).into()
        },
        is_bucket_directory: true,
    },
    Server {
        program: "weed",
        ports: 8,
        arguments: |ports, data| {
            let words = "-logtostderr server -ip=127.0.0.1 -ip.bind=127.0.0.1 -volume.max=20 -s3 \
                         -s3.port.iceberg=0 -s3.port.lance=0";
            let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            words.push(format!("-dir={data}"));
            let names = [
                "s3.port",
                "s3.port.grpc",
                "master.port",
                "master.port.grpc",
                "volume.port",
                "volume.port.grpc",
                "filer.port",
                "filer.port.grpc",
            ];
            words.extend(names.iter().zip(ports).map(|(name, port)| format!("-{name}={port}")));
            words
        },
        is_bucket_directory: false,
    },
    Server {
        program: "moto_server",
        ports: 1,
        arguments: |ports, _| ["-H", "127.0.0.1", "-p", &ports[0].to_string()].map(str::to_owned).into(),
        is_bucket_directory: false,
    },
];

/// See the [module](self).
#[derive(Debug)]
pub(super) enum Bucket {
    /// A server's program, its port, and the secret of its access key.
    Server {
        program: &'static str,
        port: u16,
        secret: String,
    },
    Directory(String),
}

impl Bucket {
    /// Starts the first server that answers, and says what it is.
    pub(super) fn start(demo: &Demo) -> Result<Self> {
        let secret = secret().map_err(|error| failed("making a key", &error))?;
        for server in &SERVERS {
            let Some(path) = in_path(server.program) else { continue };
            let what = format!("starting {}", server.program);
            match progress::waiting_for(&what, "it", || server.start(demo, &path, &secret)) {
                Ok(port) => return Ok(Self::Server { program: server.program, port, secret }),
                Err(why) => step(&format!("{} is installed and does not start: {why}", server.program)),
            }
        }
        let dir = demo.path("bucket");
        fs::create_dir(&dir).map_err(|error| failed("making a directory", &error))?;
        let names = SERVERS.map(|server| server.program).join(", ");
        step(&format!("no S3 server is installed ({names}): a directory takes its place, by file://"));
        Ok(Self::Directory(text(&dir)?.to_owned()))
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Server { program, port, .. } => format!("a bucket of {program} on 127.0.0.1:{port}"),
            Self::Directory(_) => "a directory in place of a bucket".to_owned(),
        }
    }

    /// The URL of a volume in it.
    pub(super) fn url(&self, prefix: &str) -> String {
        match self {
            Self::Server { .. } => format!("s3://{NAME}/{prefix}"),
            Self::Directory(dir) => format!("file://{dir}/{prefix}"),
        }
    }

    /// What programs that speak S3 need.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Server { port, secret, .. } => vec![
                ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
                ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", secret.clone()),
                ("AWS_REGION", "us-east-1".to_owned()),
            ],
            Self::Directory(_) => Vec::new(),
        }
    }

    /// What rclone needs to know of the remote `demo:`.
    pub(super) fn rclone_environment(&self) -> Vec<(&'static str, String)> {
        let Self::Server { port, secret, .. } = self else { return Vec::new() };
        let endpoint = format!("http://127.0.0.1:{port}");
        [
            ("RCLONE_CONFIG_DEMO_TYPE", "s3"),
            ("RCLONE_CONFIG_DEMO_PROVIDER", "Other"),
            ("RCLONE_CONFIG_DEMO_ENDPOINT", &endpoint),
            ("RCLONE_CONFIG_DEMO_ACCESS_KEY_ID", ACCESS_KEY),
            ("RCLONE_CONFIG_DEMO_SECRET_ACCESS_KEY", secret),
            ("RCLONE_CONFIG_DEMO_FORCE_PATH_STYLE", "true"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }

    /// A prefix for rclone, beside the volume.
    pub(super) fn rclone_remote(&self) -> String {
        match self {
            Self::Server { .. } => format!("demo:{NAME}/rclone"),
            Self::Directory(dir) => format!("{dir}/rclone"),
        }
    }
}

impl Server {
    /// Starts it and makes the bucket; returns its port.
    fn start(&self, demo: &Demo, program: &Path, secret: &str) -> Result<u16> {
        let data = demo.path(self.program);
        let directory = if self.is_bucket_directory { data.join(NAME) } else { data.clone() };
        let ports = fs::create_dir_all(directory).and_then(|()| free_ports(self.ports));
        let ports = ports.map_err(|error| failed("making its directory", &error))?;
        let mut command: Command = demo.program(program);
        command.args((self.arguments)(&ports, text(&data)?)).current_dir(&data);
        command.env("HOME", &data).env("TMPDIR", &data);
        // In the environment, which others cannot read.
        command.env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", secret);
        command.env("MINIO_ROOT_USER", ACCESS_KEY).env("MINIO_ROOT_PASSWORD", secret);
        command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
        let mut process = demo.start_quietly(command, None, &format!("{}.log", self.program))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = make_bucket(ports[0]);
            // Else somebody else has the port.
            let runs = !process.has_ended()?;
            match answer {
                // It is a directory, which only its owner may make.
                Ok(_) if runs && self.is_bucket_directory => return Ok(ports[0]),
                Ok(200 | 409) if runs => return Ok(ports[0]),
                _ => {}
            }
            if Instant::now() > until || !runs {
                process.end();
                let last = answer.map_or_else(|error| error.to_string(), |status| format!("status {status}"));
                return Err(failed(self.program, &format!("{last}; {}", process.log())));
            }
            // Another program's start is no event here.
            std::thread::sleep(PAUSE);
        }
    }
}

/// A secret that nobody can guess.
fn secret() -> io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// A path, for another program and for a URL.
fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| failed("making its directory", &"its path (TMPDIR) is no text"))
}

/// Ports that nobody has now.
fn free_ports(number: usize) -> io::Result<Vec<u16>> {
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let taken: Vec<TcpListener> = (0..number).map(|_| TcpListener::bind(any)).collect::<io::Result<_>>()?;
    taken.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Asks for the bucket to be made, without a signature; returns the status of the answer.
fn make_bucket(port: u16) -> io::Result<u16> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let mut stream = TcpStream::connect_timeout(&address.into(), TRY)?;
    stream.set_read_timeout(Some(TRY))?;
    let request =
        format!("PUT /{NAME} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    // `HTTP/1.1 200`
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let status = std::str::from_utf8(&head[9..]).ok().and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other("it does not speak HTTP"))
}

/// A program of this name in `PATH`.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}
