package v1alpha1

import (
	"encoding/json"
	"testing"
)

// Earlier builds listed the nodes in a profile's status. An object that cannot be decoded would cost the agents all profiles, since they are
// read by one list.
func TestProxyProfile_statusOfEarlierBuilds_isDecoded(t *testing.T) {
	var list ProxyProfileList
	err := json.Unmarshal([]byte(`{"items": [{"metadata": {"name": "edge"}, "status": {
		"nodes": [{"name": "n1", "observedGeneration": 3, "pods": 2, "upgraded": 1, "failed": 1, "paused": true, "message": "exit code 1"}],
		"conditions": [{"type": "Upgraded", "status": "False", "reason": "TooManyNodes", "message": ""}]}}]}`), &list)
	if err != nil || len(list.Items) != 1 || list.Items[0].Status.Pods != 0 {
		t.Errorf("%+v, error %v", list.Items, err)
	}
}
