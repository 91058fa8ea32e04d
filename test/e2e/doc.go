// Package e2e tests the agent as the chart ships it, on a real node with a real kubelet, container runtime and API server.
// The tests are one program, which hack/e2e.sh builds and runs inside the one-node cluster.
//
// The round core is what every change must pass. It installs the agent with NRI, the nftables backend and the proxy manager, and has for what the README
// promises:
//
//	before the first packet        TestBurstNoFirstConnectionBypassesTheProxy, TestEarlyRefusesWhatCannotBeRedirected
//	REDIRECT, TPROXY, NONE         TestTrafficPassesTheProxyInBothFamilies, TestTransparentProxiesKeepTheClientsAddress, TestModeNoneIsNoRules
//	DNS, owners, ports             TestLookupsAreCapturedAsThePodSays, TestExcludedGroupAndUserOfAnotherProxy, TestOnlyIncludedPortsAndRangesAreRedirected
//	namespaces ask, pods override  TestNamespaceAsksForItsPodsWithAProxy, TestPodOptsOutOfItsNamespace, TestRunningPodOptsInAndOutAgain
//	edits are followed in place    TestEditsOfARunningPodAreFollowedInPlace
//	rules are kept right           TestInspectShowsDrift, TestUpdateUnderChurn
//	it says what it does           TestStatusTellsTheTruth, TestCheckAndHelmTestTellThatTheAgentIsAway, TestPrometheusReadsTheAgent,
//	                               TestServicesSendNothingToAPodWithoutItsRules (the readiness gate)
//	proxies outside of pods        TestSidecarTakesTheConnectionsOfAPlainPod, TestSidecarsAreUpgradedWithoutALostConnection
package e2e
