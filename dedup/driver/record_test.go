package driver_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

func TestRecordComesBackAsItWas(t *testing.T) {
	for _, r := range []driver.Record{
		{State: driver.Running, Attempt: 1},
		{
			State: driver.Done, Attempt: 3, Claim: "uuid", Token: -5, Fingerprint: []byte{0, 255}, Retention: 90 * time.Minute,
			Owner: "host \"1\"\n", Outcome: []byte("a\nb\x00"), Message: "ä", Omitted: "",
		},
		{State: driver.Failed, Attempt: 1, Token: 1 << 40, Message: "m", Omitted: "o"},
		{State: driver.Open},
	} {
		data, err := r.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		back, err := driver.ParseRecord(data, "node")
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%+v came back as %+v, %v", r, back, err)
		}
	}
}

// The text is what other builds and people read. It changes only with its number.
func TestRecordText(t *testing.T) {
	data, err := driver.Record{
		State: driver.Done, Attempt: 2, Claim: "c", Token: 0x1f, Fingerprint: []byte("fp"), Retention: time.Hour, Owner: "o", Outcome: []byte(`{"a":1}`),
	}.MarshalBinary()
	want := `zklock-dedup/1 {"state":"done","attempt":2,"claim":"c","token":"0x1f","fingerprint":"ZnA=","retention":"1h0m0s","owner":"o","size":7}` + "\n" + `{"a":1}`
	if err != nil || string(data) != want {
		t.Errorf("%s, %v\nwant %s", data, err, want)
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	r, err := driver.ParseRecord([]byte(`zklock-dedup/1 {"state":"open","attempt":1,"size":0,"new":[1,2]}`+"\n"), "node")
	if err != nil {
		t.Fatal(err)
	}
	data, err := r.Next(driver.Running).MarshalBinary()
	if err != nil || !strings.Contains(string(data), `"new":[1,2]`) || !strings.Contains(string(data), `"state":"running"`) {
		t.Errorf("%s, %v", data, err)
	}
}

func TestBytesThatAreNoRecord(t *testing.T) {
	for text, says := range map[string]string{
		"":                                    "does not begin with",
		"zklock":                              "does not begin with",
		"zklock-dedup/":                       "no number",
		"zklock-dedup/0 {}":                   "no number",
		"zklock-dedup/-1 {}":                  "no number",
		"zklock-dedup/1":                      "no number",
		"zklock-dedup/1 {\"state\":\"open\"}": "does not end",
		"zklock-dedup/1 []\n":                 "first line",
		"zklock-dedup/1 {\"state\":\"\"}\n":   "its state",
		"zklock-dedup/1 {\"state\":\"open\",\"attempt\":-1}\n":                                  "its attempt",
		"zklock-dedup/1 {\"state\":\"done\",\"size\":3}\nab":                                    "2 bytes and should have 3",
		"zklock-dedup/1 {\"state\":\"open\",\"token\":\"12\"}\n":                                "its token",
		"zklock-dedup/1 {\"state\":\"open\",\"retention\":\"-1h\"}\n":                           "its retention",
		"zklock-dedup/1 {\"state\":\"open\",\"retention\":\"soon\"}\n":                          "its retention",
		"zklock-dedup/1 {\"state\":\"open\",\"fingerprint\":\"%\"}\n":                           "first line",
		"zklock-dedup/99999999999999999999 {\"state\":\"" + strings.Repeat("x", 1000) + "\"}\n": "no number",
	} {
		_, err := driver.ParseRecord([]byte(text), "/the/node")
		var corrupt *driver.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Where != "/the/node" || !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), says) || !driver.Unusable(err) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	_, err := driver.ParseRecord([]byte("zklock-dedup/2 not JSON"), "/the/node")
	if !errors.Is(err, driver.ErrNewerFormat) || !strings.Contains(err.Error(), "/the/node") || !driver.Unusable(err) {
		t.Errorf("%v, want ErrNewerFormat", err)
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, r := range []driver.Record{{State: driver.Open}, {State: driver.Done, Attempt: 1, Token: 5, Outcome: []byte("x\ny"), Retention: time.Hour, Fingerprint: []byte("f")}} {
		data, err := r.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`zklock-dedup/1 {"state":"open","STATE":"done","size":0}` + "\n"))
	f.Add([]byte(`zklock-dedup/1 {"state":"done","a":0,"a":"","stAte":"open","fingerprint":"","size":0,"siZe":3,"b":[1, "<"]}` + "\n"))
	f.Add([]byte(`zklock-dedup/2 {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := driver.ParseRecord(bytes.Clone(data), "node")
		if err != nil {
			if !driver.Unusable(err) {
				t.Errorf("%v is neither corrupt nor newer", err)
			}
			return
		}
		// What was read can be written and reads the same.
		again, err := r.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		back, err := driver.ParseRecord(again, "node")
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%+v came back as %+v, %v", r, back, err)
		}
	})
}
