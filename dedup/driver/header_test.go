package driver

import (
	"reflect"
	"testing"
)

var headers = []string{
	`{"state":"done","attempt":1,"claim":"c","token":"0x4","fingerprint":"YWJj","retention":"24h0m0s","owner":"a:b {[\"","size":17}`,
	`{ "state" : "open" , "message" : "x\":y" , "size":0 }`,
	`{"state":"done","Size":3,"size":2}`,
	`{"state":"done","attempt":1,"attempt":null,"size":0}`,
	`{"state":"done","extra":{"size":7,"state":["x"]},"size":0}`,
	`{"state":"done","size":{"size":1}}`,
	`{"st\u0061te":"done","size":0}`,
	`{"state":"done","size":"1"}`,
	`{"state":["done":1],"size":0}`,
	`{"state":"done"`, `{"state`, `{"state":"\`, `[{"state":"done"}]`, `null`, `"state":1`, `}{"a":1`, ``,
}

// sameBothWays fails if the quick look at a line and the thorough one differ.
func sameBothWays(t *testing.T, line []byte) {
	t.Helper()
	h, unknown, err := parseHeader(line)
	h2, unknown2, err2 := parseAnyHeader(line)
	switch {
	case (err == nil) != (err2 == nil):
		t.Errorf("%q: %v one way, %v the other", line, err, err2)
	case err == nil && (!reflect.DeepEqual(h, h2) || !reflect.DeepEqual(unknown, unknown2)):
		t.Errorf("%q: %+v %s one way, %+v %s the other", line, h, unknown, h2, unknown2)
	}
}

func TestHeaderIsTheSameBothWays(t *testing.T) {
	for _, line := range headers {
		sameBothWays(t, []byte(line))
	}
	for i, want := range []bool{true, true, false, false, false, true, false} {
		if got := knownOnly([]byte(headers[i])); got != want {
			t.Errorf("known names only in %s: %v, want %v", headers[i], got, want)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, line := range headers {
		f.Add([]byte(line))
	}
	f.Fuzz(sameBothWays)
}

func BenchmarkParseRecord(b *testing.B) {
	data, err := Record{
		State: Done, Attempt: 1, Claim: "c729ebeb-82a9-41a7-ab54-0ea79521232f", Token: 1 << 33, Fingerprint: make([]byte, 32),
		Retention: 24 * 3600e9, Owner: "host-1:4711", Outcome: []byte(`{"status":"captured","payment":"pay_29a8c1","amount":1999}`),
	}.MarshalBinary()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRecord(data, "/dedup/k"); err != nil {
			b.Fatal(err)
		}
	}
}
