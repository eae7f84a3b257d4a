//! MariaDB and MySQL servers.

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
    /// MySQL, which Debian's stable release does not have. It runs from its official image, or from
    /// an image with the package of Debian's unstable release.
    Mysql,
}

/// Configuration of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `mysql://user:password@host:port/database`.
    Standalone,
    /// The same with the default settings for durability, so each commit waits for the disk. For
    /// benchmarks, with `TMPDIR` on a disk.
    Durable,
    /// One server with a binary log, as a server with replicas has.
    Logged,
    /// One server that accepts only connections with TLS. It has its own [certificate
    /// authority](Running::ca).
    Tls,
}

/// Finds or starts a server.
///
/// # Errors
/// [`Unreachable`] with the brand's name, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the server that it has started, in the background.
pub async fn start(brand: Brand, flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(Mysql { brand, flavour, has_own_disk: false }).await
}

/// Finds or starts a server with a binary log and with a [disk](Server::fill_disk) of its own.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_disk(brand: Brand) -> Result<Running, Unreachable> {
    super::start(Mysql { brand, flavour: Flavour::Logged, has_own_disk: true }).await
}

impl Brand {
    /// Name in lower case, as in `DLOCK_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
        }
    }

    /// Returns the shell command that creates an empty data directory.
    fn install(self, program: &str) -> String {
        let config = "--defaults-file=\"$PWD/install.cnf\" --user=\"$(id -un)\" --datadir=\"$PWD/data\"";
        match self {
            Self::Mariadb => {
                format!("mariadb-install-db {config} --skip-test-db --auth-root-authentication-method=normal")
            }
            Self::Mysql => format!("{program} {config} --initialize-insecure"),
        }
    }

    /// Settings that let commits return before the disk has the data, because other tests may keep
    /// the disk busy. The data of a commit survives `kill -9` in the kernel's cache, and no test
    /// cuts the power.
    fn unsynced(self) -> &'static str {
        match self {
            Self::Mariadb => "debug_no_sync=on\ninnodb_flush_method=fsync\ninnodb_log_file_size=16M\n",
            Self::Mysql => {
                "innodb_flush_method=nosync\nsync_binlog=0\nskip_log_bin\nmysqlx=off\nsecure_file_priv=NULL\n"
            }
        }
    }

    /// Settings that make the server keep a list of its named locks, and of little else.
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
struct Mysql {
    brand: Brand,
    flavour: Flavour,
    has_own_disk: bool,
}

/// Statements that create the database and its user. The user has all rights, because tests create
/// tables.
const INIT: &str = "CREATE DATABASE IF NOT EXISTS dlock;\n\
    CREATE USER IF NOT EXISTS 'dlock'@'127.0.0.1' IDENTIFIED BY 's3cret:/';\n\
    GRANT ALL ON *.* TO 'dlock'@'127.0.0.1' WITH GRANT OPTION;\n";

#[async_trait]
impl Recipe for Mysql {
    fn package(&self) -> &'static str {
        self.brand.name()
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Standalone => STANDALONE,
            Flavour::Durable => "durable",
            Flavour::Logged if self.has_own_disk => "logged_with_disk",
            Flavour::Logged => "logged",
            Flavour::Tls => "tls",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let port = Port::claim()?;
        // The kernel limits the number of servers that use its asynchronous I/O.
        let small = "[mysqld]\ninnodb_use_native_aio=off\ninnodb_buffer_pool_size=32M\n";
        let unsynced = format!(
            "{small}innodb_flush_log_at_trx_commit=2\ninnodb_doublewrite=off\n{}",
            self.brand.unsynced()
        );
        let disk = if self.flavour == Flavour::Durable { small } else { &unsynced };
        let mut config = format!(
            "{disk}port={}\nbind-address=127.0.0.1\nskip-name-resolve\nmax_connections=4000\ntable_open_cache=400\n\
             {}",
            port.number(),
            self.brand.list_of_locks()
        );
        if self.flavour == Flavour::Logged {
            config.push_str("log_bin=changes\nserver_id=1\n");
        }
        let mut files = vec![("init.sql", INIT.to_owned()), ("install.cnf", unsynced)];
        if self.flavour == Flavour::Tls {
            config.push_str("require_secure_transport=on\n");
            for (setting, file) in [("ssl_ca", CA), ("ssl_cert", CERTIFICATE), ("ssl_key", KEY)] {
                config.push_str(&format!("{setting}={file}\n"));
            }
            files.extend(certificates::new()?);
        } else if self.brand == Brand::Mariadb {
            // MariaDB would create a certificate, and a connection with a TLS handshake costs ten
            // times as much as one without.
            config.push_str("skip_ssl\n");
        }
        files.push(("server.cnf", config));
        let install = self.brand.install(program);
        // The certificates are copied because the server resolves relative paths in its data
        // directory. `TMPDIR` is set because temporary tables of two servers may have the same
        // name.
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

    /// Checks the greeting, with which a server that is up begins each connection. It contains the
    /// version of the protocol.
    async fn probe(&self, server: &Server) -> io::Result<()> {
        let mut stream = TcpStream::connect(server.address()).await?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await?;
        if greeting[4] == 10 { Ok(()) } else { Err(io::Error::other("the server greets with an error")) }
    }

    fn has_own_disks(&self) -> bool {
        self.has_own_disk
    }

    fn url(&self, servers: &[Server]) -> String {
        let tls = if self.flavour == Flavour::Tls { "?tls=on" } else { "" };
        format!("mysql://dlock:s3cret%3A%2F@{}/dlock{tls}", servers[0].address())
    }
}
