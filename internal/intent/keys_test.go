package intent

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeys_everyKeyRead_isDescribed(t *testing.T) {
	names := func(keys []Key) (all []string) {
		for _, k := range keys {
			if k.Values == "" || k.Without == "" || k.Meaning == "" {
				t.Errorf("%s is not described: %+v", k.Name, k)
			}
			all = append(all, k.Name)
		}
		return slices.Sorted(slices.Values(all))
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(readAnnotations())), names(Keys())); diff != "" {
		t.Errorf("annotations (-read +described):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(readEnv())), names(Environment())); diff != "" {
		t.Errorf("environment (-read +described):\n%s", diff)
	}
}
