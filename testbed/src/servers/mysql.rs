//! MariaDB and MySQL.

use std::io;

use async_trait::async_trait;
use dlock_conformance::Unreachable;
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use super::{
    Running,
    certificates::{self, CA, CERTIFICATE, KEY},
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};

/// The program that the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    /// MariaDB.
    Mariadb,
    /// MySQL, which Debian does not have: from its image, or from Ubuntu's package in an image.
    Mysql,
}

/// How the server is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `mysql://user:password@host:port/database`.
    Standalone,
    /// The same, but each commit waits for the disk, as where nobody has changed the settings: for benchmarks, with
    /// `TMPDIR` on a disk.
    Durable,
    /// One server that takes only connections with TLS, with a [certificate authority](Running::ca) of its own.
    Tls,
}

/// Finds or starts a server.
///
/// # Errors
/// [`Unreachable`] by the brand's name, with everything that was tried.
///
/// # Cancel safety
/// Dropping the future ends in the background the server that it started.
pub async fn start(brand: Brand, flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(One { brand, flavour }).await
}

impl Brand {
    /// In lower case, as `DLOCK_REQUIRE` says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
        }
    }

    /// What makes an empty data directory, in the shell.
    fn install(self, program: &str) -> String {
        let config = "--defaults-file=\"$PWD/install.cnf\" --user=\"$(id -un)\" --datadir=\"$PWD/data\"";
        match self {
            Self::Mariadb => {
                format!("mariadb-install-db {config} --skip-test-db --auth-root-authentication-method=normal")
            }
            Self::Mysql => format!("{program} {config} --initialize-insecure"),
        }
    }

    /// Settings with which the server waits for no disk, busy as that may be with other tests. What the kernel has received of a
    /// commit survives `kill -9`, and no test cuts the power.
    fn unsynced(self) -> &'static str {
        match self {
            Self::Mariadb => "debug_no_sync=on\ninnodb_flush_method=fsync\ninnodb_log_file_size=16M\n",
            Self::Mysql => {
                "innodb_flush_method=nosync\nsync_binlog=0\nskip_log_bin\nmysqlx=off\nsecure_file_priv=NULL\n"
            }
        }
    }

    /// Settings with which the server keeps a list of its named locks, and of little else.
    fn list_of_locks(self) -> &'static str {
        match self {
            Self::Mariadb => "performance_schema=off\nplugin_load_add=metadata_lock_info\n",
            Self::Mysql => {
                "performance_schema=on\nperformance_schema_instrument='%=OFF'\n\
                performance_schema_instrument='wait/lock/metadata/sql/mdl=ON'\n"
            }
        }
    }
}

#[derive(Debug)]
struct One {
    brand: Brand,
    flavour: Flavour,
}

/// The tests make their own tables, so the user may.
const INIT: &str = "CREATE DATABASE IF NOT EXISTS dlock;\n\
    CREATE USER IF NOT EXISTS 'dlock'@'127.0.0.1' IDENTIFIED BY 's3cret:/';\n\
    GRANT ALL ON *.* TO 'dlock'@'127.0.0.1' WITH GRANT OPTION;\n";

#[async_trait]
impl Recipe for One {
    fn package(&self) -> &'static str {
        self.brand.name()
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Standalone => STANDALONE,
            Flavour::Durable => "durable",
            Flavour::Tls => "tls",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let port = Port::claim()?;
        // The kernel has room for few servers with its own asynchronous I/O.
        let little = "[mysqld]\ninnodb_use_native_aio=off\ninnodb_buffer_pool_size=32M\n";
        let unsynced = format!(
            "{little}innodb_flush_log_at_trx_commit=2\ninnodb_doublewrite=off\n{}",
            self.brand.unsynced()
        );
        let disk = if self.flavour == Flavour::Durable { little } else { &unsynced };
        let mut config = format!(
            "{disk}port={}\nbind-address=127.0.0.1\nskip-name-resolve\nmax_connections=4000\ntable_open_cache=400\n\
             {}",
            port.number(),
            self.brand.list_of_locks()
        );
        let mut files = vec![("init.sql", INIT.to_owned()), ("install.cnf", unsynced)];
        if self.flavour == Flavour::Tls {
            config.push_str("require_secure_transport=on\n");
            for (setting, file) in [("ssl_ca", CA), ("ssl_cert", CERTIFICATE), ("ssl_key", KEY)] {
                config.push_str(&format!("{setting}={file}\n"));
            }
            files.extend(certificates::new()?);
        } else if self.brand == Brand::Mariadb {
            // It would make a certificate of its own, and a handshake costs ten times what a connection costs without.
            config.push_str("skip_ssl\n");
        }
        files.push(("server.cnf", config));
        let install = self.brand.install(program);
        // A relative path of the server is one in its data directory. Temporary tables of two servers may have one name.
        let command = format!(
            "export TMPDIR=\"$PWD\"\n[ -e data/installed ] || {{ rm -rf data; {install} >install.log 2>&1 && touch data/installed; }} || \
             {{ grep -iE 'error|space' install.log | tail -n 3 | grep . || tail -n 3 install.log; exit 1; }}\nfor file in *.pem *.key; do [ -e \"$file\" ] && cp \"$file\" data; done\n\
             exec {program} --defaults-file=\"$PWD/server.cnf\" --user=\"$(id -un)\" --datadir=\"$PWD/data\" \
             --socket=\"$PWD/socket\" --pid-file=\"$PWD/server.pid\" --init-file=\"$PWD/init.sql\""
        );
        Ok(vec![Member {
            name: "server".to_owned(),
            command: ["sh", "-c", &command].map(str::to_owned).to_vec(),
            files,
            data: "data",
            ports: vec![port],
        }])
    }

    /// A server that is up greets before it is asked, with the version of its protocol.
    async fn probe(&self, server: &Server) -> io::Result<()> {
        let mut stream = TcpStream::connect(server.address()).await?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await?;
        if greeting[4] == 10 { Ok(()) } else { Err(io::Error::other("the server greets with an error")) }
    }

    fn url(&self, servers: &[Server]) -> String {
        let tls = if self.flavour == Flavour::Tls { "?tls=on" } else { "" };
        format!("mysql://dlock:s3cret%3A%2F@{}/dlock{tls}", servers[0].address())
    }
}
