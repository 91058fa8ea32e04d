package admissiontest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// storedOtherwise names the fields of an applied object that the API server stores in other words: a default inside a field that is one to
// server-side apply, a false that it leaves out, another spelling of a number. There a second manager of the same text conflicts, and engines
// that compare see a difference for ever. Which fields the text has is what the API server says that its manager owns.
func storedOtherwise(t *testing.T, applied, stored *unstructured.Unstructured, manager string) (found []string) {
	t.Helper()
	for _, entry := range stored.GetManagedFields() {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != "" {
			continue
		}
		var owned map[string]any
		must(t, json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned))
		found = append(found, differences("", owned, applied.Object, stored.Object)...)
	}
	return found
}

// differences walks the fields that are owned. What has nothing below it is a value, or a field that is one.
func differences(path string, owned map[string]any, applied, stored any) (found []string) {
	if len(owned) == 0 {
		if one, other := asJSON(applied), asJSON(stored); one != other {
			found = append(found, fmt.Sprintf("%s: the text has %s, the API server %s", strings.TrimPrefix(path, "."), one, other))
		}
		return found
	}
	for _, key := range slices.Sorted(maps.Keys(owned)) {
		if key == "." {
			continue // the item or the map itself
		}
		below, _ := owned[key].(map[string]any)
		_, name, _ := strings.Cut(key, ":")
		found = append(found, differences(path+"."+name, below, inside(applied, key), inside(stored, key))...)
	}
	return found
}

// inside is a member, by its key in managedFields: f:NAME of a map, k:{KEYS} and v:VALUE of a list.
func inside(value any, key string) any {
	kind, name, _ := strings.Cut(key, ":")
	if kind == "f" {
		members, _ := value.(map[string]any)
		return members[name]
	}
	items, _ := value.([]any)
	at := slices.IndexFunc(items, func(item any) bool {
		if kind == "v" {
			return asJSON(item) == name
		}
		var keys map[string]any
		members, _ := item.(map[string]any)
		if json.Unmarshal([]byte(name), &keys) != nil {
			return false
		}
		for key, want := range keys {
			if got, there := members[key]; there && asJSON(got) != asJSON(want) { // a key may have a default
				return false
			}
		}
		return true
	})
	if at < 0 {
		return nil
	}
	return items[at]
}

// What there is to find is found: the search must not pass because it looks at nothing.
func TestStoredOtherwise_findsWhatIsOtherwise(t *testing.T) {
	const owned = `{"f:spec": {"f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:ref": {}}}, "f:actions": {"v:\"Deny\"": {}}, "f:writable": {}, "f:pods": {}}}`
	object := func(spec string) *unstructured.Unstructured {
		made := &unstructured.Unstructured{Object: map[string]any{}}
		must(t, json.Unmarshal([]byte(`{"spec": `+spec+`}`), &made.Object))
		made.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "a", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(owned)}})
		return made
	}
	const stored = `{"env": [{"name": "B"}, {"name": "A", "ref": {"path": "x", "version": "v1"}}], "actions": ["Deny"], "pods": "5k", "more": 1}`
	same(t, []string{
		`spec.env.{"name":"A"}.ref: the text has {"path":"x"}, the API server {"path":"x","version":"v1"}`,
		`spec.pods: the text has "5000", the API server "5k"`,
		`spec.writable: the text has false, the API server null`,
	}, storedOtherwise(t, object(`{"env": [{"name": "A", "ref": {"path": "x"}}], "actions": ["Deny"], "writable": false, "pods": "5000"}`), object(stored), "a"), "differences")
	same(t, []string(nil), storedOtherwise(t, object(strings.Replace(stored, `"more": 1`, `"pods": "5k"`, 1)), object(stored), "a"), "differences of what is stored")
}
