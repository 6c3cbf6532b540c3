import org.codelibs.opensearch.runner.OpenSearchRunner;

/** One node on loopback that is its own cluster: OpenSearchNode FOLDER HTTP_PORT TRANSPORT_PORT. */
public class OpenSearchNode {
    public static void main(String[] arguments) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            settings.put("network.host", "127.0.0.1");
            settings.put("http.port", arguments[1]);
            settings.put("transport.port", arguments[2]);
            settings.put("discovery.type", "single-node");
            settings.putList("discovery.seed_hosts");
            settings.remove("cluster.initial_cluster_manager_nodes");
            // A disk that is nearly full is no reason for a test to be refused its few megabytes.
            settings.put("cluster.routing.allocation.disk.threshold_enabled", false);
        });
        runner.build(OpenSearchRunner.newConfigs().basePath(arguments[0]).numOfNode(1).clusterName("otel-assembly"));
        runner.ensureYellow();
        Thread.currentThread().join();
    }
}
