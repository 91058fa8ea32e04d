// Package e2e tests the agent as the chart ships it, on a real node with a real kubelet, container runtime and API server.
// The tests are one program, which hack/e2e.sh builds and runs inside the one-node cluster.
package e2e
