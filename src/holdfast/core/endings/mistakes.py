"""The messages of mistakes in a program or its configuration, as data; the only words of a log that
end a job.

MISTAKE-1  A mistake whose chain of exceptions begins with a failure that passes proves nothing,
           because the next attempt may never come into that `except` clause.
MISTAKE-2  403 or "Forbidden" alone is no refusal for good, because services tell rate limits so.
"""

from holdfast.core.causes import Cause
from holdfast.core.endings.wording import Pattern, expect_end, expect_last, expect_raised

_MISTAKE = Cause.PROGRAM_ERROR

MISTAKES: tuple[Pattern, ...] = (
    expect_last("usage", _MISTAKE, "its arguments are wrong",
        r"(?m:^\S{1,100}: error: (?:unrecognized arguments|the following arguments are required|argument "
        r"\S{1,100}: |ambiguous option|one of the arguments|invalid choice))",
        r"(?m:^Error: (?:No such (?:option|command)|Missing (?:option|argument|parameter|command)|Invalid "
        r"value for|Got unexpected extra argument))", code=2),
    expect_last("option", _MISTAKE, "it was given an option that it does not know",
        r"(?m:^(?:[\w./ -]{1,80}: )?(?:unrecognized|unknown|invalid|illegal) option\b)"),
    expect_last("syntax", _MISTAKE, "its code cannot be read",
        r"(?m:^(?:Syntax|Indentation|Tab)Error: )", r": line \d{1,6}: syntax error\b",
        r"(?m:^syntax error at [^\n]{1,120} line \d)", r"PHP Parse error: ", r"\bUndefVarError: ",
        r"(?m:^[gmn]?awk: [^\n]{0,80}(?:syntax error|missing|unexpected))"),
    expect_end("javascript", _MISTAKE, "its code cannot be read or names what is not there",
        r"(?m:^(?:Syntax|Reference)Error: )(?=[^\0]{1,4000}\nNode\.js v[\d.]{1,20}\s{0,4}\Z)"),
    expect_raised("credentials", "credentials or settings that it needs are not on this host",
        r"Unable to locate credentials", r"\b(?:NoCredentials|PartialCredentials|DefaultCredentials|NoRegion)Error: ", r"\bProfileNotFound: ",
        r"\b[Cc]redentials (?:were|was|are) not found", r"failed to retrieve a token from the included credentials",
        r"api_key (?:is )?not (?:configured|set)", r"API key (?:is )?not (?:configured|set)", r"\b[Nn]o (?:\w{1,20} )?token (?:was )?found", r"\b[Nn]o (?:\w{1,20} )?API key (?:was )?(?:found|is set|provided)",
        r"Could not find kaggle\.json", r"Missing(?:Api|API)(?:Token|Key)\w{0,20}: ", elsewhere=True),
    expect_last("login", _MISTAKE, "it is not signed in, or has no settings, on this host",
        r"^[^\n]{0,40}\bUnable to locate credentials\Z", r"could not read (?:Username|Password) for '", r"You do not currently have an active account",
        r"didn't find section in config file", elsewhere=True),
    expect_last("refused", _MISTAKE, "a service refused what it asked for, or has no such thing",
        r"\b(?:401|404|410) Client Error\b", r"HTTP Error (?:401|404|410): ",
        r"The requested URL returned error: (?:401|404|410)", r"\bERROR (?:401|404|410): ",
        r"\(Error (?:401|404|410): ", r"Error code: (?:401|404)\b",
        r"\b401\b\W{0,3}(?:message=\W)?Unauthorized", r"\b404\b\W{0,3}(?:message=\W)?Not Found",
        r"\bGatedRepoError: ", r"is restricted and you are not in the authorized list",
        r"google\.api_core\.exceptions\.(?:NotFound|Unauthenticated|Unauthorized): ",
        r"azure\.core\.exceptions\.(?:ResourceNotFound|ClientAuthentication)Error: ", r"fatal: Authentication failed for ",
        r"fatal: couldn't find remote ref ", r"remote: Repository not found",
        r"An error occurred \((?:NoSuch\w{1,20}|InvalidAccessKeyId|SignatureDoesNotMatch|40[14])\) when calling"),
    expect_last("configuration", _MISTAKE, "its configuration is wrong",
        r"(?m:^Could not override ')", r"There are not enough slots available in the system",
        r"(?:srun|salloc|sbatch): error: [^\n]{0,60}[Ii]nvalid (?:account|partition|qos)"),
    expect_raised("configuration-error", "its configuration is wrong",
        r"^(?:omegaconf|hydra)\.errors\.\w{1,60}: ", r"^yaml\.(?:scanner|parser|composer|constructor)\.\w{1,60}: ",
        r"TOMLDecodeError: ", r"ValidationError: \d{1,5} validation errors? for "
        r"\w{0,80}(?:Config|Settings|Arg|Option|Param)\w{0,10}\b",
        r"environment variable \w{1,80} expected, but not set",
        r"^KeyError: '(?:MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)'",
        r"^(?:AssertionError|ValueError): [^\n]{0,160}(?:is not|must be|should be|to be) (?:evenly )?divisible by "),
    expect_raised("name", "its code names what is not there",
        r"^NameError: name '\w{1,200}' is not defined", r"^UnboundLocalError: ",
        r"^AttributeError: (?:partially initialized )?module '[\w.]{1,200}' has no attribute ",
        r"most likely due to a circular import",
        r"^AttributeError: '(?!NoneType|str|bytes|int|float|bool|list|dict|tuple|set)\w{1,100}' object has no attribute "),
    expect_raised("call", "its code calls a function in a way that the function does not allow",
        r"^TypeError: [\w.<>]{1,200}\(\) (?:got (?:an unexpected keyword argument|multiple values for)|missing "
        r"\d{1,3} required|takes )",
        r"^TypeError: Can't instantiate abstract class ", r"^TypeError: '(?!NoneType)\w{1,60}' object is not callable",
        r"^triton\.compiler\.errors\.CompilationError: "),
    expect_raised("shapes", "its tensors do not fit together",
        r"mat1 and mat2 shapes cannot be multiplied", r"expected \w{1,20} and \w{1,20} to have the same dtype",
        r"Expected all tensors to be on the same device", r"expected scalar type \w{1,20} but found \w{1,20}",
        r"Given groups=\d{1,6}, weight of size "),
    expect_raised("state-dict", "the checkpoint does not fit its model",
        r"Error\(s\) in loading state_dict for "),
    expect_raised("backward", "its gradients are asked for in a way that PyTorch does not allow",
        r"Trying to backward through the graph a second time", r"has been modified by an inplace operation",
        r"does not require grad and does not have a grad_fn"),
    expect_raised("fork", "it did what a process may not do here: after a fork, without a main module, or off its main thread",
        r"Cannot re-initialize \w{1,20} in forked subprocess", r"daemonic processes are not allowed to have children",
        r"start a new process before the\s{1,20}current process has finished its bootstrapping phase",
        r"^RuntimeError: context has already been set", r"\b[Cc]an't pickle ", r"\bcannot pickle '", r"\b[Cc]an't get local object ",
        r"cannot be called from a running event loop", r"signal only works in main thread",
        r"Cowardly refusing to serialize non-leaf tensor", r"should only be shared between processes through inheritance", r"can only be used in that same thread", r"called ray\.init twice by accident"),
    expect_raised("variable", "a variable of the environment that it needs is not set",
        r"^KeyError: '\w{1,200}'\nin os\.environ\Z", r"\bset(?:ting)? the [A-Z][A-Z0-9_]{2,80} environment variable",
        r"[Ee]nvironment variable \W?[A-Z][A-Z0-9_]{2,80}\W? (?:is |was )?(?:not set|not defined|missing|required)",
        r"^decouple\.UndefinedValueError: "),
    expect_raised("refused-word", "a library refuses a word of its configuration by name",
        r"^[\w.]{0,100}Error: (?:Unknown|Unrecognized|Unsupported|Invalid) (?:model|optimizer|scheduler|backend|dataset|architecture"
        r"|activation|loss|device|dtype|task|metric|layer|solver)\b", r"is not a valid \w{1,80}, please select one of",
        r"at start of device string: ", r"pass the argument `trust_remote_code=True`", r"Weights only load failed",
        r"Dataset scripts are no longer supported", r"Check batch related parameters", r"not found in the base model", r"optimizer got an empty parameter list", r"\bNameNotFound: Environment "),
    expect_raised("lacking", "a library or build on this host lacks what it asks for",
        r"only supports? [\w/ ]{1,40} GPUs or newer", r"\bcompute capability\b", r"\b(?:Minimum|Required) capability: \d",
        r"not implemented for '\w{1,40}'", r"requires? the [\w.-]{1,60} library but it was not found", r"Missing optional dependency '",
        r"^ImportError: [^\n]{0,300}\b(?:requires?|required|not installed|pip install)\b", r"^ImportError: cannot import name ",
        r"does not recognize this architecture", r"\bout of resource: ", r"doesn't have \w{1,20} built in",
        r"\bnot (?:been )?compiled (?:in\b|with )", r"\bnot (?:been )?built with ", r"Could not run '[\w:.]{1,120}' with arguments from the '\w{1,40}' backend",
        r"does not match the version torch was compiled with", r"\bCUDA_HOME environment variable is not set", r"\bis required to load C\+\+ extensions",
        r"No operator found for `", r"is newer than and incompatible with", r"\brequires \w{1,60} to be installed\b", r"\bABI-incompatible\b", r"\bLibraryNotFound: ", r"A module that was compiled using NumPy 1", elsewhere=True),
    expect_last("denied", _MISTAKE, "a service does not let it do what it asked for",
        r"An error occurred \(AccessDenied\w{0,20}\) when calling", r"google\.api_core\.exceptions\.PermissionDenied: ", elsewhere=True),
)  # fmt: skip
"""Messages of a mistake in the program or its configuration, which no other hour or order of data
mends; with `elsewhere`, another build, driver, card or cache may, so another host is tried once."""
