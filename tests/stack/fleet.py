"""A fleet on this machine: a node's Collector, the gateway's two tiers, and the certificates between them."""

from __future__ import annotations

import subprocess

from local_stack import COLLECTORS, Collector, stop_all

TOKEN = "of-the-test"  # made for this run


def make_certificates(folder):
    """An authority of our own (`ca.crt`), and a certificate of it for this machine (`tls.crt`, `tls.key`)."""
    folder.mkdir(parents=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=tests")
    openssl("req", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=gateway")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    signed_by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl("x509", "-req", "-in", "tls.csr", *signed_by, "-extfile", "names", "-out", "tls.crt", "-days", "2")
    return folder


def for_tls(certificates):
    """The environment variables that name the certificates."""
    return {
        "TLS_CERT_FILE": str(certificates / "tls.crt"),
        "TLS_KEY_FILE": str(certificates / "tls.key"),
        "TLS_CA_FILE": str(certificates / "ca.crt"),
        "GATEWAY_CA_FILE": str(certificates / "ca.crt"),
        "GATEWAY_TOKEN": TOKEN,
    }


class Fleet:
    """agent → balancer → two samplers → Jaeger; a context manager."""

    def __init__(self, programs, folder, jaeger, prometheus, **settings):
        self.certificates = make_certificates(folder / "tls")
        common = for_tls(self.certificates) | {
            "JAEGER_ENDPOINT": jaeger.otlp,
            "PROMETHEUS_ENDPOINT": prometheus.otlp,
            "SPAN_METRICS_INTERVAL": "1s",
        }

        def collector(config, name, **more):
            return Collector(programs, COLLECTORS / config, folder / name, common | settings | more, name=name)

        self.samplers = [collector("gateway-sampler.yaml", f"sampler-{number}") for number in range(2)]
        addresses = ",".join(sampler.otlp_grpc for sampler in self.samplers)
        self.balancer = collector("gateway-balancer.yaml", "balancer", SAMPLERS=addresses)
        self.agent = collector("agent.yaml", "agent", GATEWAY_ENDPOINT=self.balancer.otlp_grpc)

    @property
    def collectors(self):
        return [*self.samplers, self.balancer, self.agent]

    def __enter__(self):
        try:
            for collector in self.collectors:
                collector.start()
        except BaseException:
            stop_all(self.collectors)
            raise
        return self

    def __exit__(self, *raised):
        stop_all(self.collectors)
